"""tape_exp: experiments on positional encodings in decoder-only transformers."""

TYPE_CHECKING = False  # what typing calls so, without an import of it
if TYPE_CHECKING:
    from typing import Any

    from tape_exp.library import LoadedRun, build, compare, evaluate, load, plot, records, train

__all__ = ["LoadedRun", "build", "compare", "evaluate", "load", "plot", "records", "train"]


def __getattr__(name: str) -> "Any":
    """The functions of :mod:`tape_exp.library`, which is imported when one is used; the version."""
    if name == "__version__":
        from importlib.metadata import version

        return version("tape_exp")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tape_exp import library

    return getattr(library, name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
