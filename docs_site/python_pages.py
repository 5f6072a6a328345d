"""The pages of the reference that mkdocstrings fills from docstrings."""

from links import ROOT

# page -> title, and the modules in their order; a folder is all of its modules
PAGES: dict[str, tuple[str, list[str]]] = {
    "library": ("The library", ["library"]),
    "positions": ("Positional encodings", ["models/positions"]),
    "tasks": ("Tasks", ["tasks"]),
    "models": (
        "Models",
        [
            "models/decoder",
            "models/block",
            "models/layers",
            "models/cache",
            "models/generation",
            "models/trace",
            "models/peft",
            "models/llama",
        ],
    ),
    "attention": ("Attention", ["models/attention"]),
    "data": ("Data", ["data"]),
    "settings": ("Settings", ["settings/schema", "settings/compose", "settings/errors"]),
    "runs": ("Runs on disk", ["runs"]),
}


def pages() -> dict[str, str]:
    """Path -> text."""
    return {
        f"reference/python/{name}.md": page(title, [m for part in parts for m in modules(part)])
        for name, (title, parts) in PAGES.items()
    }


def modules(part: str) -> list[str]:
    """The modules of a folder, ``base`` first, or the one module that is named."""
    folder = ROOT / "tape_exp" / part
    if not folder.is_dir():
        return [part]
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    return [part, *(f"{part}/{name}" for name in sorted(names, key="base".__ne__))]


def page(title: str, names: list[str]) -> str:
    """A page with a section for each module."""
    return f"# {title}\n\n" + "\n".join(map(section, names))


def section(name: str) -> str:
    """A module: what it says of itself, and its names unless these are of the modules below it."""
    dotted = "tape_exp." + name.replace("/", ".")
    lines = [
        f"## {dotted.removeprefix('tape_exp.')}\n",
        f"::: {dotted}",
        "    options:",
        "      show_root_heading: false",
        "      show_root_toc_entry: false",
    ]
    if (ROOT / "tape_exp" / name).is_dir():
        lines.append("      members: false")
    return "\n".join(lines) + "\n"
