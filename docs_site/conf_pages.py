"""The reference of conf/: every YAML with its keys, their values and what they mean.

A key is explained by the comment on its line, or else by the docstring of what the YAML constructs.
"""

import html
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe
import yaml
from links import ROOT

CONF = ROOT / "conf"
# group -> title; the folders below a group are on its page
GROUPS = {
    "model": "Models",
    "task": "Tasks",
    "scale": "Scales",
    "text": "Texts",
    "trainer": "Trainers",
    "logger": "Loggers",
    "peft": "Adaptation",
    "debug": "Debugging",
    "paper": "Artifacts of the paper",
    "hydra": "Launchers",
    "local": "Your cluster",
}
COMMENT = re.compile(r"\s#\s+(.*)$")
COMMAND = re.compile(r"(python|tape-exp) ")
CODE = re.compile(r"(`[^`]*`)")
ROLE = re.compile(r":\w+:`~?([\w.]+)`")


def pages() -> dict[str, str]:
    """Path -> text: the top, and a page for each group."""
    rows = [f"| [`conf/{name}/`]({name}.md) | {means(name)} |" for name in GROUPS]
    top = [
        "# Config\n",
        "A choice such as `model=tape` is the name of a file in the folder of its group. "
        "`tape-exp train --help` lists the choices, and `--cfg job` prints the composed config.\n",
        "| group | what belongs there |\n|---|---|",
        *rows,
        "\n" + section(CONF / "config.yaml", "## config.yaml"),
    ]
    made = {"reference/conf/index.md": "\n".join(top)}
    for name, title in GROUPS.items():
        made[f"reference/conf/{name}.md"] = "\n".join(group(name, title))
    return made


def means(group: str) -> str:
    """What docs/architecture.md says of a folder of conf/."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    row = re.search(rf"^\| `conf/{group}/` +\| (.*?) +\|$", page, re.MULTILINE)
    assert row, f"docs/architecture.md has no row for conf/{group}/"
    return row.group(1)


def group(name: str, title: str) -> Iterator[str]:
    """The page of a group: its own YAMLs, then those of each folder below it."""
    said = means(name)
    yield f"# {title}\n\nThe folder `conf/{name}/`: {said}.\n"
    ignored = (
        set()
        if name != "local"
        else {path for path in (CONF / name).glob("*.yaml") if path.stem != "example"}
    )
    folders = [CONF / name, *sorted(path for path in (CONF / name).rglob("*") if path.is_dir())]
    for folder in folders:
        for path in sorted(set(folder.glob("*.yaml")) - ignored):
            yield section(path, f"## {path.relative_to(CONF / name).with_suffix('')}")


def section(path: Path, heading: str) -> str:
    """One YAML: its comment, what it begins from and constructs, its keys."""
    text = path.read_text()
    parts = [heading, opening(text)]
    root = yaml.compose(text)
    rows: list[str] = []
    if isinstance(root, yaml.MappingNode):
        plain = {key.value: value for key, value in root.value}
        if "defaults" in plain:
            parts.append(f"Begins from {begins(plain['defaults'])}.")
        target = plain["_target_"].value if "_target_" in plain else None
        if target:
            link = f'<autoref optional identifier="{target}"><code>{target}</code></autoref>'
            parts.append(f"Constructs {link}.")
        rows = [*keys(root, text.splitlines(), arguments(target) if target else {})]
    if rows:
        parts.append("\n".join(["| key | value | what it is |", "|---|---|---|", *rows]))
    return "\n\n".join(part for part in parts if part) + "\n"


def opening(text: str) -> str:
    """The comment that a YAML begins with: sentences in a paragraph, other lines as they are."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    if any(COMMAND.match(line) for line in lines):
        lines = [part for line in lines for part in re.split(r" {4,}", line)]
        return "  \n".join(f"`{line}`" if COMMAND.match(line) else escaped(line) for line in lines)
    parts = re.split(r"(?<=[^.,;:])\n(?=[A-Z])", "\n".join(lines))  # a line may end a sentence
    return "  \n".join(escaped(part.replace("\n", " ")) for part in parts)


def begins(node: yaml.Node) -> str:
    """The entries of a defaults list, less the YAML itself."""
    named = []
    for entry in node.value:
        if isinstance(entry, yaml.MappingNode):
            ((key, value),) = entry.value
            named.append(f"`{key.value}: {value.value}`")
        elif entry.value != "_self_":
            named.append(f"`{entry.value}`")
    return ", ".join(named)


def keys(
    node: yaml.MappingNode, lines: list[str], arguments: dict[str, str], above: str = ""
) -> Iterator[str]:
    """The rows of a mapping; the keys of one below another are joined by dots."""
    for key, value in node.value:
        name = f"{above}{key.value}"
        if name in ("defaults", "_target_", "name"):  # the name is the heading
            continue
        meaning = comment(lines, key.start_mark.line) or arguments.get(name, "")
        nested = isinstance(value, yaml.MappingNode) and value.value
        if not nested or meaning:
            yield f"| `{name}` | {'' if nested else shown(value)} | {escaped(meaning)} |"
        if nested:
            yield from keys(value, lines, arguments, f"{name}.")


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
