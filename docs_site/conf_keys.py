"""What the keys of conf/ are: by the comment on their line, or else by what they are given to.

A constructor says it in its docstring, the schema in comments on its fields.
"""

import ast
import html
import re
from collections.abc import Iterator
from functools import cache

import griffe
import yaml
from links import ROOT

COMMENT = re.compile(r"\s#\s+(.*)$")
CODE = re.compile(r"(`[^`]*`)")
ROLE = re.compile(r":\w+:`~?([\w.]+)`")
SCHEMA = {"trainer": "TrainerConfig", "logger": "LoggerConfig", "debug": "DebugConfig"}
PARTS = {  # what many tasks have a section for
    "windows": "tape_exp.tasks.perplexity.Windows",
    "tokenizer": "tape_exp.data.tokenizers.Tokenization",
    "text": "tape_exp.data.sources.Text",
}


def rows(text: str, group: str = "") -> list[str]:
    """The rows of a table of a YAML's keys: key, value, what it is."""
    root = yaml.compose(text)
    if not isinstance(root, yaml.MappingNode):
        return []
    known = group_keys(group)
    target = next((value.value for key, value in root.value if key.value == "_target_"), None)
    if target:
        known = known | arguments(target)
    return [*keys(root, text.splitlines(), known)]


def keys(
    node: yaml.MappingNode, lines: list[str], known: dict[str, str], above: str = ""
) -> Iterator[str]:
    """The rows of a mapping; the keys of one below another are joined by dots."""
    for key, value in node.value:
        name = f"{above}{key.value}"
        if name in ("defaults", "_target_", "name"):  # the name is the heading
            continue
        meaning = comment(lines, key.start_mark.line) or known.get(name) or part_of(name)
        nested = isinstance(value, yaml.MappingNode) and value.value and not value.flow_style
        if not nested or meaning:
            yield f"| `{name}` | {'' if nested else shown(value)} | {escaped(meaning)} |"
        if nested:
            yield from keys(value, lines, known, f"{name}.")


def comment(lines: list[str], at: int) -> str:
    """The comment at the end of a line, with those that go on below it."""
    first = COMMENT.search(lines[at])
    if not first:
        return ""
    said = [first.group(1)]
    for line in lines[at + 1 :]:
        below = re.match(r"\s+#\s+(.*)$", line)
        if not below or line.index("#") < first.start():
            break
        said.append(below.group(1))
    return " ".join(said)


def shown(node: yaml.Node) -> str:
    """A value as code, on one line."""
    written = plain(node)
    written = written if len(written) <= 160 else written[:159] + "…"
    return f"`{written}`".replace("|", "\\|") if written else ""


def plain(node: yaml.Node) -> str:
    """A value as YAML writes it in a line."""
    if isinstance(node, yaml.SequenceNode):
        return f"[{', '.join(map(plain, node.value))}]"
    if isinstance(node, yaml.MappingNode):
        return "{" + ", ".join(f"{key.value}: {plain(value)}" for key, value in node.value) + "}"
    return " ".join(str(node.value).split())


def escaped(text: str) -> str:
    """Text of a comment as Markdown; what stands in backticks is code already."""
    parts = CODE.split(text)
    parts[::2] = [re.sub(r"([*_|\[\]])", r"\\\1", html.escape(part, False)) for part in parts[::2]]
    parts[1::2] = [part.replace("|", "\\|") for part in parts[1::2]]
    return "".join(parts)


def part_of(name: str) -> str:
    """What a key below ``arch``, ``optim`` or another part of many tasks is."""
    *_, part, key = ["", *name.split(".")]
    if part in ("arch", "optim"):
        return {name: told for name, _, told in fields(part.capitalize())}.get(key, "")
    return arguments(PARTS[part]).get(key, "") if part in PARTS else ""


def group_keys(group: str) -> dict[str, str]:
    """What the keys of a group are that no YAML of it explains."""
    if group in SCHEMA:
        return {name: told for name, _, told in fields(SCHEMA[group])}
    return arguments(PARTS["text"]) if group == "text" else {}


def every_key(group: str) -> str:
    """The table of all keys of a group that the schema fixes, with their defaults."""
    table = [
        f"| `{n}` | `{d}` | {escaped(t)} |" for n, d, t in fields(SCHEMA[group]) if n != "name"
    ]
    return "\n".join(["| key | default | what it is |", "|---|---|---|", *table]) + "\n"


@cache
def fields(dataclass: str) -> list[tuple[str, str, str]]:
    """Name, default and comment of each field of a dataclass of the schema."""
    source = (ROOT / "tape_exp" / "settings" / "schema.py").read_text()
    lines = source.splitlines()
    (found,) = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == dataclass
    ]
    made = []
    for field in found.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            at = field.lineno - 1
            above = re.match(r"\s+#\s+(.*)$", lines[at - 1])
            told = comment(lines, at) or (above.group(1) if above else "")
            default = "" if field.value is None else written(field.value)
            made.append((field.target.id, default, told))
    return made


def written(value: ast.expr) -> str:
    """A default as the command line writes it."""
    try:
        plain = ast.literal_eval(value)
    except ValueError:
        return ast.unparse(value)
    words = {None: "null", True: "true", False: "false"}
    return words[plain] if plain is None or isinstance(plain, bool) else str(plain)


@cache
def package() -> griffe.Object:
    """The package as its sources describe it; nothing is imported."""
    loaded = griffe.load("tape_exp", search_paths=[str(ROOT)])
    assert isinstance(loaded, griffe.Module)
    return loaded


def described(told: griffe.DocstringNamedElement) -> str:
    """What a docstring says of an argument, on one line."""
    return " ".join(told.description.split())


def arguments(target: str) -> dict[str, str]:
    """Key -> what the docstring of a class, or of one it inherits from, says of it."""
    found: dict[str, str] = {}
    try:
        first = package()[target.removeprefix("tape_exp.")]
    except KeyError:
        return found
    for one in [first, *(first.mro() if isinstance(first, griffe.Class) else [])]:
        for part in one.docstring.parse("google", warnings=False) if one.docstring else []:
            if part.kind is griffe.DocstringSectionKind.parameters:
                for told in part.value:
                    for name in told.name.split(","):
                        found.setdefault(name.strip(), ROLE.sub(r"`\1`", described(told)))
    return found
