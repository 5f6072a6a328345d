"""The Hugging Face hub: what it raises, told in a sentence."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tape_exp.settings.errors import ConfigError

OFFLINE = (
    "Two sources need no network: scale.text=local with task.text.path=<a folder of .jsonl, "
    ".jsonl.gz, .parquet or .txt>, and scale.text=builtin."
)


def hub_errors() -> tuple[type[Exception], ...]:
    """Return what the hub's client raises: of an answer of the hub, and where none comes."""
    from huggingface_hub import errors

    of_http: type[Exception] = errors.HfHubHTTPError.__bases__[0]  # the HTTP library's own
    of_disk = (errors.LocalEntryNotFoundError, FileNotFoundError, ConnectionError)
    return of_http, errors.HFValidationError, errors.HfUriError, *of_disk


@contextmanager
def hub(what: str, instead: str = OFFLINE) -> Iterator[None]:
    """Turn what the hub raises, where it is asked for ``what``, into :class:`ConfigError`."""
    try:
        yield
    except hub_errors() as error:
        raise ConfigError(f"{what}: {reason(error)} {instead}") from error


def download(
    repository: str,
    patterns: list[str],
    needed: Callable[[Path], Iterable[Path]],
    what: str,
    instead: str,
) -> Path:
    """Return the folder of a repository in the hub's cache, fetched first unless all ``needed``
    files are there; ``what`` and ``instead`` as :func:`hub` takes them.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with hub(what, instead):
        try:
            here = snapshot_download(repository, allow_patterns=patterns, local_files_only=True)
            if all(path.is_file() for path in needed(Path(here))):
                return Path(here)
        except LocalEntryNotFoundError:
            pass
        reach()
        return Path(snapshot_download(repository, allow_patterns=patterns))


def reach() -> None:
    """Raise at once what the hub's client would raise after trying for half a minute."""
    from huggingface_hub import constants, get_session

    get_session().head(constants.ENDPOINT, timeout=10)


def reason(error: Exception) -> str:
    """Explain why the hub did not give something, and what to do."""
    from huggingface_hub import constants, errors

    cause: BaseException | None = error  # datasets and fsspec raise errors of their own from it
    while cause is not None and not isinstance(cause, errors.HfHubHTTPError):
        cause = cause.__cause__ or cause.__context__
    message = " ".join(str(cause or error).split())[:300]
    if cause is None:
        return (
            f"the hub at {constants.ENDPOINT} cannot be reached, or has nothing there ({message})."
        )
    if cause.response.status_code in (401, 403, 404):
        return f"the hub refuses it ({message}). Correct the name, or log in with `hf auth login`."
    return f"the hub cannot give it ({message}). Start again later."
