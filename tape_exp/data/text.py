"""Text as a stream of documents: from the Hugging Face hub, local files, or Python itself."""

import glob
import hashlib
import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field

from tape_exp.data.files import (
    FORMATS,
    NotTextError,
    format_of,
    lines,
    rows,
    text_in,
    why,
    without_compression,
)
from tape_exp.data.hub import hub, reach, reason
from tape_exp.machine.files import short_hash
from tape_exp.settings.errors import ConfigError

LONGEST = 4 << 20  # characters of a document of a .txt, which is cut at a line end
WHOLE = (".txt", ".py")  # of these a file is text, of the others its rows hold it
BUILTIN = "builtin_"  # what metrics on built-in text begin with
LEFT_OUT = {  # folders of the standard library
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "__pycache__",
    "pydoc_data",
    "_pyrepl",
}
Split = Literal["train", "validation", "test"]
Source = Literal["hub", "local", "builtin"]


class NoFilesError(ConfigError):
    """A local text has no file of a split.

    Args:
        text: which one; the task that reads it knows its key, as ``task.text``.
        split: which of its splits.
    """

    def __init__(self, text: "Text", split: str, key: str = "task.text") -> None:
        super().__init__(
            f"text {text.name}: no file of the split {split} in {text.path}. Set {key}.path to a "
            f"folder with {split}*.jsonl, .jsonl.gz, .parquet or .txt, or {key}.files.{split} to "
            "other patterns. scale.text=builtin needs none."
        )
        self.text = text
        self.split = split


@dataclass(frozen=True)
class Text:
    """A corpus: a YAML of ``conf/text``, from Hugging Face's hub, local files, or Python itself."""

    name: Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]  # becomes a folder
    source: Source = "builtin"
    # local: a folder with files named after the split (train*.jsonl.gz, validation/*.parquet, …) or
    # laid out as in the repository, or one file, which has no splits. .jsonl, .json, .parquet,
    # .txt; also compressed.
    path: str | None = None
    repository: str | None = None  # of the hub
    revision: str = "main"  # 40 hexadecimal digits need no network once the tokens are cached
    # Patterns of each split, in the repository and, if it has such files, in the folder.
    files: dict[Split, list[str]] = field(default_factory=dict)
    column: str = "text"  # the field that holds the text
    # Keep rows whose (dotted) field has this value: {meta.pile_set_name: Github}.
    where: dict[str, str | bool | int | float] = field(default_factory=dict)
    # The standard library's sources, or the language reference of pydoc; a file in twenty is
    # validation, one test.
    builtin: Literal["code", "english", "both"] = "both"

    @property
    def label(self) -> str:
        """Return what metrics on it are called: the corpus, or ``builtin_<corpus>``."""
        return f"{BUILTIN}{self.name}" if self.source == "builtin" else self.name

    def documents(self, split: Any) -> Iterator[str]:
        """Yield every document of a split that is not empty. Memory holds one, or a batch of rows
        of a .parquet. Raises :class:`ConfigError` where a file is not text
        (:mod:`tape_exp.data.files`).
        """
        if self.source == "builtin" and self.builtin != "code":
            yield from _reference(split)
        for url in self.urls(split):
            done = 0
            try:
                for document in self._documents(url):
                    yield document
                    done += 1
            except Exception as error:  # whatever a codec or parser raises on broken content
                of_hub = url.startswith("hf://") and not isinstance(error, NotTextError)
                cause = reason(error) if of_hub else why(error)
                raise ConfigError(
                    f"{url} cannot be read after {done} documents: {cause}"
                ) from error

    def urls(self, split: Any) -> list[str]:
        """List the files of a split, in order."""
        if self.source == "builtin":
            return [] if self.builtin == "english" else _library(split)
        urls = self._on_hub(split) if self.source == "hub" else self._in_folder(split)
        for url in urls:
            if format_of(url) not in FORMATS:
                raise ConfigError(
                    f"{url}: text is read from {', '.join(FORMATS)} files, also compressed."
                )
        return urls

    def shared_file(self, split: Any, other: "Text", other_split: Any) -> str | None:
        """Name a file from which both texts take documents, each for its split; None where there is
        none. The splits of built-in text share none.

        A file is the same behind a link, and packed or not. Two texts share none of its rows where
        ``where`` asks for two values of one field. The hub is not asked: the files in it are known
        by their patterns.
        """
        if self.source != other.source:
            return None
        mine = set(self._origins(split).values())
        for name, origin in other._origins(other_split).items():
            found = origin in mine
            if self.source == "hub":
                found = found or any(_fits(origin, pattern) for pattern in mine)
            if found and not self._excludes(other, name):
                return name
        return None

    def _origins(self, split: Any) -> dict[str, str]:
        """Return each file of a split with what it is, behind links and unpacked; of the hub
        patterns.
        """
        origins = {}
        if self.source == "local":
            for url in self.urls(split):
                origins[url] = without_compression(os.path.realpath(url))
        if self.source == "hub":
            for pattern in self.files.get(split, []):
                origins[pattern] = f"/{self.repository}/{pattern}"
        return origins

    def _excludes(self, other: "Text", name: str) -> bool:
        """Say whether no row of a file is for both texts, because of what they ask of one field."""
        fields = self.where.keys() & other.where.keys()
        asked = any(self.where[field] != other.where[field] for field in fields)
        return asked and format_of(name) not in WHOLE

    def fingerprint(self, split: Any) -> str:
        """Hash where the text comes from: of files their names, sizes and times of change, of
        the language reference, which each Python has in its own version, its text.
        """
        origin: list[Any] = [self.column, sorted(self.where.items())]
        if self.source == "hub":
            origin += [self.repository, self._commit(), self.files.get(split)]
        else:
            for url in self.urls(split):
                stat = os.stat(url)
                origin.append((Path(url).name, stat.st_size, stat.st_mtime_ns))
            origin.append(self.builtin if self.source == "builtin" else None)
        if self.source == "builtin" and self.builtin != "code":
            origin.append(short_hash(_reference(split)))
        return short_hash([repr(origin)])

    def _documents(self, url: str) -> Iterator[str]:
        if format_of(url) in WHOLE:
            yield from _pieces(url)
            return
        for row in rows(url):
            if all(_at(row, key) == value for key, value in self.where.items()):
                text = text_in(row, self.column, "column= of this text names the field of texts.")
                if text:
                    yield text

    def _in_folder(self, split: Any) -> list[str]:
        """List the files of a split that a local path has."""
        path = Path(self.path or "").expanduser()
        if path.is_file():
            return [str(path)]
        for patterns in (self.files.get(split, []), [f"{split}*", f"{split}/**/*"]):
            paths: list[Path] = []
            for pattern in patterns if self.path else ():
                # It goes through links to folders, and leaves out what a dot hides: copies, as in
                # .ipynb_checkpoints.
                names = glob.glob(pattern, root_dir=path, recursive=True)
                paths += sorted(path / name for name in names if (path / name).is_file())
            if paths:
                return self._without_copies(paths)
        raise NoFilesError(self, split)

    def _without_copies(self, paths: list[Path]) -> list[str]:
        """Return files in their order. Raises :class:`ConfigError` where one is there twice, packed
        and unpacked.
        """
        bare: dict[str, str] = {}
        for name in map(str, paths):
            other = bare.setdefault(without_compression(name), name)
            if other != name:
                raise ConfigError(
                    f"text {self.name}: {other} and {name} would be read twice; remove one, or "
                    "set files= of this text to patterns of the other."
                )
        return [*dict.fromkeys(map(str, paths))]

    def _on_hub(self, split: Any) -> list[str]:
        """List the files of a split in the repository."""
        if self.repository is None or split not in self.files:
            raise ConfigError(f"text {self.name}: source=hub needs repository and files.{split}.")
        from huggingface_hub import HfFileSystem

        base = f"datasets/{self.repository}@{self._commit()}"
        urls: list[str] = []
        with hub(f"text {self.name}"):
            reach()
            for pattern in self.files[split]:
                urls += sorted(map(str, HfFileSystem().glob(f"{base}/{pattern}")))
        if not urls:
            raise ConfigError(
                f"text {self.name}: {self.repository} has no file like {self.files[split]} at "
                f"{self.revision}. Set files.{split} to the patterns of its files."
            )
        return [f"hf://{url}" for url in urls]

    def _commit(self) -> str:
        """Return the commit that ``revision`` names, which the hub is asked for unless it is
        one.
        """
        if re.fullmatch("[0-9a-f]{40}", self.revision) or self.repository is None:
            return self.revision
        from huggingface_hub import HfApi

        with hub(f"text {self.name}"):
            reach()
            return str(HfApi().dataset_info(self.repository, revision=self.revision).sha)


def _fits(one: str, other: str) -> bool:
    """Say whether one of two absolute patterns fits the other."""
    return PurePosixPath(one).match(other) or PurePosixPath(other).match(one)


def _at(row: Any, key: str) -> Any:
    """Return the value of a dotted field: of ``meta.set`` in ``{meta: {set: Github}}``
    ``Github``.
    """
    for name in key.split("."):
        if not isinstance(row, dict) or name not in row:
            raise NotTextError(f"a row has no field {key!r}, by which where= of this text chooses.")
        row = row[name]
    return row


def _pieces(url: str) -> Iterator[str]:
    """Yield a file as documents of :data:`LONGEST` characters or so, cut at the ends of its
    lines.
    """
    piece = [""]
    length = 0
    for line in lines(url):
        piece.append(line)
        length += len(line)
        if length > LONGEST:
            yield "".join(piece)
            piece = []
            length = 0
    if length:
        yield "".join(piece)


@cache
def _library(split: str) -> list[str]:
    """List the sources of the standard library without tests."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = []
    for name in sorted(str(path.relative_to(library)) for path in library.rglob("*.py")):
        is_left_out = LEFT_OUT & set(Path(name).parts)
        is_generated = Path(name).name.startswith("_sysconfigdata")
        if not is_left_out and not is_generated and _split_of(name) == split:
            paths.append(str(library / name))
    return paths


def _reference(split: str) -> Iterator[str]:
    """Yield the topics of a split of the language reference, which ``help()`` shows."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        if _split_of(name) == split:
            yield topics[name]


def _split_of(name: str) -> str:
    """Return the split of a name: one name in twenty is validation, one test."""
    drawn = hashlib.sha256(name.encode()).digest()[0] % 20
    if drawn == 0:
        return "validation"
    return "test" if drawn == 1 else "train"
