"""Where text comes from: the Hugging Face hub, local files, or the Python installation."""

import hashlib
import logging
import os
import re
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from typing import Any

from tape_exp.data.lines import COUNTED, lines, pieces, replaced
from tape_exp.machine.files import parse_json
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.folders import path_of

log = logging.getLogger("tape_exp")
FORMATS = {
    ".jsonl": "lines",
    ".json": "lines",
    ".parquet": "parquet",
    ".txt": "files",
    ".py": "files",
}
SPLITS = ("train", "validation", "test")
COMPRESSED = (".gz", ".zst", ".xz", ".bz2")
# Characters of one document; a longer .txt is cut at a line end, so that memory stays flat.
LONGEST = 4 << 20
LONGEST_LINE = 64 << 20  # characters of a .jsonl; more would only be a damaged or hostile file
BUILTIN = "builtin_"  # what metrics on built-in text begin with
Place = tuple[int, int]  # part and row: how far a stream of documents has come


@dataclass(frozen=True)
class Text:
    """A corpus: a YAML of ``conf/text``.

    Args:
        name: what tables call it, and metrics where it is read: :attr:`label`.
        source: ``hub`` (Hugging Face), ``local`` (files under ``path``) or ``builtin`` (Python's
            standard library).
        path: local: a folder with files named after the split (``train*.jsonl.gz``,
            ``validation/*.parquet``, …) or laid out as in the repository, or one file, which has no
            splits. .jsonl, .json (one object a line), .parquet, .txt; also compressed.
        repository, revision: of the hub. A revision of 40 hexadecimal digits needs no network once
            its tokens are cached.
        files: patterns of the files of each split, in the repository and, if it has such files, in
            the folder.
        column: the field that holds the text.
        where: keep rows whose (dotted) field has this value: ``{meta.pile_set_name: Github}``.
        builtin: which built-in text is used for this corpus: ``code`` (the standard library's
            sources), ``english`` (the language reference of ``pydoc``) or ``both``. One file in
            twenty is validation, one test.
    """

    name: str
    source: str = "builtin"
    path: str | None = None
    repository: str | None = None
    revision: str = "main"
    files: dict[str, list[str]] = field(default_factory=dict)
    column: str = "text"
    where: dict[str, str] = field(default_factory=dict)
    builtin: str = "both"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.+-]*", self.name):
            raise ConfigError(
                f"text.name={self.name} becomes a folder; write letters, digits and _."
            )
        one_of("text.source", self.source, ("hub", "local", "builtin"))
        one_of("text.builtin", self.builtin, ("code", "english", "both"))
        for split in self.files:
            one_of("text.files", split, SPLITS)

    @property
    def label(self) -> str:
        """What metrics on it are called: the corpus, or ``builtin_<corpus>``."""
        return f"{BUILTIN}{self.name}" if self.source == "builtin" else self.name

    @property
    def told(self) -> str:
        """What logs call it: the corpus, or ``built-in text for <corpus>``."""
        return f"built-in text for {self.name}" if self.source == "builtin" else self.name

    def documents(
        self, split: str, start: Place = (0, 0), skipped: "Skipped | None" = None
    ) -> Iterator[tuple[Place, str]]:
        """Every document from ``start`` on, each with the place after it. Memory holds one document
        or 10 MB of a file.

        Rows that are not what they should be are left out, named in the log and counted in
        ``skipped``.

        Raises:
            ConfigError: no files, no network, a damaged file; the sentence says which and what to
                do.
        """
        skipped = Skipped() if skipped is None else skipped
        for number, part in enumerate(self.parts(split)):
            if number < start[0]:
                continue
            first = start[1] if number == start[0] else 0
            row = first
            try:
                for row, row_content in enumerate(part.rows(first), first):
                    text = self._text(part, row, row_content, skipped)
                    if text:
                        yield (number, row + 1), text
            except ConfigError:
                raise
            except Exception as error:  # whatever a codec or parser raises on broken content
                reason = str(error).rstrip(".") or type(error).__name__
                reason += ". Fetch the file again, or remove it from the corpus."
                if self.source == "hub":
                    reason = hub_refusal(f"datasets/{self.repository}", error)
                raise ConfigError(
                    f"{part.name} cannot be read beyond row {row}: {reason}"
                ) from error

    def parts(self, split: str) -> list["Part"]:
        """The split's files in order: a part is one file, or many small plain-text files."""
        if self.source == "builtin":
            return _builtin_parts(self.builtin, split)
        urls = self._hub_files(split) if self.source == "hub" else self._local_files(split)
        parts: list[Part] = []
        for url in urls:
            kind = _format(url)
            if kind == "files" and (_size(url) > LONGEST or url.endswith(COMPRESSED)):
                kind = "long file"
            if kind == "files" and parts and parts[-1].kind == "files":
                parts[-1].urls.append(url)
            else:
                parts.append(Part(kind, [url]))
        return parts

    def fingerprint(self, split: str) -> str:
        """A hash of where the text comes from and what it holds: the same for a copy of the files.

        Files above 64 MB are sampled: their size and sixteen pieces of 64 KB.
        """
        digest = hashlib.sha256(repr((self.column, sorted(self.where.items()))).encode())
        if self.source == "hub":
            patterns = self._hub_patterns(split)
            digest.update(repr((self.repository, self._commit(), patterns)).encode())
        else:
            for part in self.parts(split):
                part.add_to(digest)
        return digest.hexdigest()[:16]

    def _text(
        self, part: "Part", row: int, content: dict[str, Any], skipped: "Skipped"
    ) -> str | None:
        """The text of a row, or None where the row is not wanted or not right."""
        if part.kind != "lines" and part.kind != "parquet":
            return content["text"]
        fields: Any = content
        if part.kind == "lines":
            if not content["text"].strip():
                return None
            try:
                fields = parse_json(content["text"])
            except ValueError as error:
                skipped.add(f"{part.name} line {row + 1} is not JSON ({error})")
                return None
        if not isinstance(fields, dict) or not isinstance(fields.get(self.column), str):
            known = ", ".join(fields) if isinstance(fields, dict) else type(fields).__name__
            skipped.add(
                f"{part.name} line {row + 1} has no text in its field {self.column!r} (it has: "
                f"{known})"
            )
            return None
        for key, wanted in self.where.items():
            value: Any = fields
            for step in key.split("."):
                value = value.get(step) if isinstance(value, dict) else None
            if value != wanted:
                return None
        text = fields[self.column]
        if not _is_unicode(text):
            skipped.add(f"{part.name} line {row + 1} holds half of a character, as \\ud800 is")
            return None
        return text

    def check_path(self, key: str) -> None:
        """Raise :class:`ConfigError` where the files of a local text, of ``key``, are absent."""
        path = self.path
        if self.source == "local" and (path is None or not path_of(f"{key}.path", path).exists()):
            raise ConfigError(
                f"{key}.path={path} does not exist, and {key}.source=local reads its files; set "
                f"{key}.path=<a folder of .jsonl, .jsonl.gz, .parquet or .txt>."
            )

    @property
    def file(self) -> Path | None:
        """The file of a local text that is one."""
        if self.source != "local" or self.path is None:
            return None
        path = path_of(f"text {self.name}: path", self.path)
        return path.resolve() if path.is_file() else None

    def _local_files(self, split: str) -> list[str]:
        if self.path is None:
            raise ConfigError(
                f"text {self.name}: source=local needs a path: a folder with {split}*.jsonl, "
                ".jsonl.gz, .parquet or .txt. scale.text=builtin needs none."
            )
        path = path_of(f"text {self.name}: path", self.path)
        if path.is_file():
            return [str(path)]
        if not path.exists():
            raise ConfigError(
                f"text {self.name}: path={self.path} does not exist. Set task.text.path (of a test "
                f"set task.tests.<name>.path) to a folder with {split}*.jsonl, .jsonl.gz, .parquet "
                "or .txt; scale.text=builtin needs no files."
            )
        for patterns in (self.files.get(split, []), [f"{split}*", f"{split}/**/*"]):
            try:
                matches = [
                    str(f)
                    for p in patterns
                    for f in sorted(path.glob(p))
                    if f.is_file() and not hidden(f.relative_to(path))
                ]
            except (ValueError, NotImplementedError) as error:  # an empty one, or of the root
                raise ConfigError(
                    f"text {self.name}: files.{split}={list(patterns)} must be patterns below "
                    f"path={self.path}, as {split}*.jsonl is."
                ) from error
            if matches:
                return matches
        present = ", ".join(sorted(f.name for f in path.iterdir())[:8]) or "nothing"
        raise ConfigError(
            f"text {self.name}: no file of the split {split} in {self.path} (there is: {present}). "
            f"Name files {split}*.jsonl, or give their patterns, as in "
            f"task.text.files.{split}=[{split}*] (of a test set task.tests.<name>.files.{split})."
        )

    def _hub_files(self, split: str) -> list[str]:
        patterns = self._hub_patterns(split)
        check_hub(f"text {self.name}")
        from huggingface_hub import HfFileSystem

        base = f"datasets/{self.repository}@{self._commit()}"
        try:
            urls = [
                f"hf://{url}"
                for p in patterns
                for url in sorted(map(str, HfFileSystem().glob(f"{base}/{p}")))
            ]
        except (OSError, ValueError) as error:
            raise self._refused(error) from error
        except hub_errors() as error:
            raise self._refused(error) from error
        if not urls:
            raise ConfigError(
                f"text {self.name}: {self.repository} has no file like {patterns} at "
                f"{self.revision}. Set files.{split} to the patterns of its files."
            )
        return urls

    def _hub_patterns(self, split: str) -> list[str]:
        if self.repository is None or split not in self.files:
            raise ConfigError(
                f"text {self.name}: source=hub needs repository and files.{split}, the patterns of "
                "its files."
            )
        return self.files[split]

    def _commit(self) -> str:
        """The commit that the revision names."""
        if re.fullmatch("[0-9a-f]{40}", self.revision):
            return self.revision
        check_hub(f"text {self.name}")
        from huggingface_hub import HfApi

        assert self.repository is not None
        try:
            return str(HfApi().dataset_info(self.repository, revision=self.revision).sha)
        except hub_errors() as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"text {self.name}: {hub_refusal(f'datasets/{self.repository}', error)} A copy of its "
            "files can be read with task.text.source=local task.text.path=<a folder>."
        )


@dataclass
class Skipped:
    """Rows that were left out: the first few are named in the log at once, all are counted."""

    rows: int = 0
    named: int = 5

    def add(self, reason: str) -> None:
        """Count one more row, and say why."""
        self.rows += 1
        if self.rows <= self.named:
            log.warning("%s; skipped.", reason)


def hidden(path: Path) -> bool:
    """Whether it is, or is in, what a dot hides, such as the copies in .ipynb_checkpoints."""
    return any(part.startswith(".") and part != ".." for part in path.parts)


def _is_unicode(text: str) -> bool:
    """Whether it can be written: JSON may name half of a character, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass
class Part:
    """Files that are read together, through a loader of Hugging Face ``datasets``."""

    kind: str  # lines | parquet | files | long file | topics
    urls: list[str]

    @property
    def name(self) -> str:
        """The name in messages."""
        return (
            self.urls[0]
            if len(self.urls) == 1
            else f"{self.urls[0]} and {len(self.urls) - 1} more files"
        )

    def rows(self, first: int) -> Iterator[dict[str, Any]]:
        """Rows from ``first`` on; ``text`` is a line or a file, parquet has its own columns.

        Bytes that are not UTF-8 are read as U+FFFD, and a warning for each file says how many.
        """
        wrong: dict[str, int] = {}
        rows, row, before = self._rows(first), first, replaced()
        try:
            while (content := next(rows, None)) is not None:
                if more := replaced() - before:
                    # Small files are a row each; the first row has read those before it, too.
                    alone = self.kind == "files" and (row > first or row == 0)
                    name = self.urls[row] if alone and row < len(self.urls) else self.name
                    wrong[name] = wrong.get(name, 0) + more
                yield content
                row, before = row + 1, replaced()
        finally:
            for name, count in wrong.items():
                log.warning(
                    "%s is not all UTF-8 (bytes that are read as U+FFFD: %d); convert it if it is "
                    "in another encoding.",
                    name,
                    count,
                )

    def _rows(self, first: int) -> Iterator[dict[str, Any]]:
        if self.kind == "topics":
            yield from ({"text": text} for text in list(_topics(self.urls).values())[first:])
            return
        if self.kind == "long file":
            texts = pieces(self.urls[0], LONGEST)
            yield from ({"text": text} for text in islice(texts, first, None))
            return
        if self.kind == "lines":
            texts = lines(self.urls[0], LONGEST_LINE)
            yield from ({"text": text.rstrip("\n")} for text in islice(texts, first, None))
            return
        if self.kind == "parquet":
            rows = self._load("parquet")
        else:
            rows = self._load("text", sample_by="document")
        yield from rows.skip(first) if first else rows

    def add_to(self, digest: Any) -> None:
        """Add names and content to a hash."""
        if self.kind == "topics":
            digest.update(repr(sorted(_topics(self.urls).items())).encode())
            return
        for url in self.urls:
            size = os.path.getsize(url)
            digest.update(f"{Path(url).name} {size}".encode())
            with open(url, "rb") as file:
                if size <= 64 << 20:
                    digest.update(file.read())
                    continue
                for piece in range(16):
                    file.seek(size * piece // 16)
                    digest.update(file.read(64 << 10))

    def _load(self, loader: str, **options: Any) -> Any:
        import datasets

        if loader == "text":
            options["encoding_errors"] = COUNTED
        return datasets.load_dataset(
            loader, data_files=self.urls, split="train", streaming=True, **options
        )


OFFLINE = (
    "Two sources need no network: scale.text=local with task.text.path=<a folder of .jsonl, "
    ".jsonl.gz, .parquet or .txt>, and scale.text=builtin."
)


def check_hub(what: str, instead: str = OFFLINE) -> None:
    """Raise a :class:`ConfigError` if the hub is out of reach, naming what works without it."""
    from huggingface_hub import constants

    reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else ""
    if not reason:
        try:
            urllib.request.urlopen(
                urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=5
            ).close()
        except urllib.error.HTTPError:
            pass  # it answers
        except (OSError, HTTPException) as error:
            reason = str(getattr(error, "reason", error))
        except ValueError as error:  # of an address that is none
            raise ConfigError(
                f"HF_ENDPOINT={constants.ENDPOINT} is no address ({error}); set it to one such as "
                "https://huggingface.co."
            ) from error
    if reason:
        raise ConfigError(f"{what}: the Hugging Face hub cannot be reached ({reason}). {instead}")


def hub_errors() -> tuple[type[Exception], ...]:
    """What the hub's client raises: of an answer of the hub, and where none comes whole."""
    from huggingface_hub import errors

    of_http: type[Exception] = errors.HfHubHTTPError.__bases__[0]  # the HTTP library's own
    return of_http, errors.HFValidationError, errors.LocalEntryNotFoundError


def hub_refusal(repository: str, error: Exception) -> str:
    """What the hub or its client objects to in a request for ``repository``, and what to do."""
    from huggingface_hub import constants, errors

    # The client and datasets raise errors of their own from the hub's answer.
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, errors.HfHubHTTPError):
        cause = cause.__cause__
    page = f"{constants.ENDPOINT}/{repository}"
    if isinstance(cause, errors.GatedRepoError):
        return f"{page} is gated. Accept its terms there and log in with `hf auth login`."
    if isinstance(cause, errors.RepositoryNotFoundError):
        return (
            f"{page} does not exist or is private. Correct its name, or log in with `hf auth "
            "login`."
        )
    if isinstance(cause, errors.RevisionNotFoundError):
        return f"{page} has no such revision. Name a branch, a tag or a commit."
    if isinstance(cause, errors.RemoteEntryNotFoundError):
        return f"{page} has no file {cause.response.url.path.rsplit('/', 1)[-1]}."
    if cause is not None and cause.response.status_code in (401, 403):
        return (
            f"{page} may not be read. Log in with `hf auth login`, with a token that may read it."
        )
    reason = str(cause or error).strip().split("\n")[0].rstrip(".")
    return f"{page} cannot be read ({reason}). Correct its name, or start again later."


def _format(url: str) -> str:
    suffixes = [s for s in Path(url).suffixes if s not in COMPRESSED]
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in FORMATS:
        raise ConfigError(
            f"{url}: text is read from {', '.join(s for s in FORMATS if s != '.py')} files, also "
            "compressed."
        )
    return FORMATS[suffix]


def _size(url: str) -> int:
    return 0 if "://" in url else os.path.getsize(url)


def _builtin_parts(which: str, split: str) -> list[Part]:
    parts = []
    if which != "code":
        parts.append(Part("topics", [key for key in _topics() if _split_of(key) == split]))
    if which != "english":
        library, names = _library()
        parts.append(
            Part("files", [str(library / name) for name in names if _split_of(name) == split])
        )
    return parts


@cache
def _library() -> tuple[Path, list[str]]:
    """The folder of the standard library, and its sources without tests."""
    library = Path(sysconfig.get_path("stdlib"))
    left_out = {
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idle_test",
        "__pycache__",
        "pydoc_data",
        "_pyrepl",
    }
    names = (path.relative_to(library) for path in library.rglob("*.py"))
    return library, sorted(
        str(n)
        for n in names
        if not left_out & set(n.parts) and not n.name.startswith("_sysconfigdata")
    )


def _topics(keys: list[str] | None = None) -> dict[str, str]:
    """The language reference that ``help()`` shows, by topic."""
    from pydoc_data.topics import topics

    return dict(sorted(topics.items())) if keys is None else {key: topics[key] for key in keys}


def _split_of(name: str) -> str:
    """One name in twenty is validation, one test."""
    return {0: "validation", 1: "test"}.get(hashlib.sha256(name.encode()).digest()[0] % 20, "train")
