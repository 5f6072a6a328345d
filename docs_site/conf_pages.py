"""The reference of conf/: a page for each group, with every YAML, its keys and what they are."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from conf_keys import SCHEMA, escaped, every_key, rows
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
    "space": "Spaces of a search",
    "local": "Your cluster",
}
COMMAND = re.compile(r"(python|tape-exp) ")


def pages() -> dict[str, str]:
    """Path -> text: the top, and a page for each group."""
    groups = [f"| [`conf/{name}/`]({name}.md) | {means(name)} |" for name in GROUPS]
    top = [
        "# Config\n",
        "A choice such as `model=tape` is the name of a file in the folder of its group. "
        "`tape-exp train --help` lists the choices, and `--cfg job` prints the composed config.\n",
        "| group | what belongs there |\n|---|---|",
        *groups,
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
    if name in SCHEMA:
        yield f"Every key can be set, as in `{name}.<key>=…`; a YAML sets only what it changes.\n"
        yield every_key(name)
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
    if isinstance(root, yaml.MappingNode):
        plain = {key.value: value for key, value in root.value}
        if "defaults" in plain:
            parts.append(f"Begins from {begins(plain['defaults'])}.")
        target = plain["_target_"].value if "_target_" in plain else None
        if target:
            link = f'<autoref optional identifier="{target}"><code>{target}</code></autoref>'
            parts.append(f"Constructs {link}.")
    if table := rows(text, path.relative_to(CONF).parts[0]):
        parts.append("\n".join(["| key | value | what it is |", "|---|---|---|", *table]))
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
