"""What torch.compile is told before it traces a block, and the facts that it takes as constant."""

import functools
import importlib.util
import logging

from tape_exp.machine.seeding import RowSampler

log = logging.getLogger("tape_exp")
CHOSEN_BACKENDS: list[str] = []  # what was chosen in this run, as its log has it


def log_once(text: str) -> None:
    """Log a choice once in a run."""
    if text not in CHOSEN_BACKENDS:
        CHOSEN_BACKENDS.append(text)
        log.info(text)


@functools.cache  # the search looks in every folder
def flash_installed() -> bool:
    """Say whether there is flash-attn."""
    return importlib.util.find_spec("flash_attn") is not None


@functools.cache
def prepare_to_compile() -> None:
    """Tell torch.compile what is constant, so that a block is one graph, and not to autocast in the
    backward pass, which would multiply in 16 bits what the forward pass multiplied in fp32.
    """
    import torch._dynamo  # takes a second
    import torch._functorch.config as functorch_config

    # By default a ninth size or kind of block would silently be computed eagerly.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    functorch_config.backward_pass_autocast = "off"
    for fact in (log_once, flash_installed):
        torch.compiler.assume_constant_result(fact)
    # Not where it is defined: that would import torch._dynamo for those who compile nothing.
    RowSampler.integers = torch.compiler.disable(RowSampler.integers)  # type: ignore[method-assign]
