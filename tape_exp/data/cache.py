"""The folder ``cache=``, which all runs share: tokens and trained tokenizers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tape_exp.settings.errors import ConfigError


@contextmanager
def writing_cache(cache: Path) -> Iterator[None]:
    """Turn an error of writing there into a sentence that names the folder.

    Raises:
        ConfigError: the disk is full, or the folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None and not Path(error.filename).is_relative_to(cache):
            raise  # of reading the text
        reason = error.strerror or error
        raise ConfigError(
            f"cache={cache} cannot be written ({reason}): free space there, or set "
            "cache=<another folder>."
        ) from error
