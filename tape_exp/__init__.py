"""tape_exp: experiments on positional encodings in decoder-only transformers."""

import os

# Jupyter names a backend of its own to every command that it starts. Where that is not installed,
# matplotlib could not be imported; every picture here is drawn without a backend.
_home = os.environ.get("MPLBACKEND", "").partition("module://")[2].partition(".")[0]
if _home:
    from importlib.util import find_spec  # here, so that an import of the package imports nothing

    if find_spec(_home) is None:
        del os.environ["MPLBACKEND"]
