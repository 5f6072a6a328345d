"""tape_exp: experiments on positional encodings in decoder-only transformers."""

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

AUTO = "transformers.models.auto.configuration_auto"


class AfterTransformers(MetaPathFinder):
    """Registers our model type as soon as transformers' auto classes are imported, which takes
    seconds and is not done here.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The usual spec of ``AUTO``, its loader followed by our registration; None for every other
        module.
        """
        if name != AUTO:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                import_module("tape_exp.models.hf_config")

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if AUTO in sys.modules:
    import_module("tape_exp.models.hf_config")
else:
    sys.meta_path.insert(0, AfterTransformers())
