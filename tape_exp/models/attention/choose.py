"""Which backend serves a call of attention, said once in the log of a run."""

import logging
from typing import Any

import torch

from tape_exp.models.attention import cudnn, fastest, fla, flash
from tape_exp.models.attention.backends import BACKENDS
from tape_exp.models.attention.inputs import Inputs
from tape_exp.models.attention.window import Window
from tape_exp.models.kernels import runtime

log = logging.getLogger("tape_exp")

# On a CPU the fused kernel pays off only from this many tokens on; for fewer, one explicit softmax
# serves the values and what is carried at once.
CPU_SDPA_FROM = 64


def pick_backend(inputs: Inputs) -> str:
    """The name of the fastest correct backend for these inputs; each choice is logged once."""
    able = {name: why for name, why in _preferences(inputs) if not BACKENDS[name].refuses(inputs)}
    if not able:
        return "reference"
    name, why = next(iter(able.items()))
    kind = "bias" if inputs.biased else "plain"
    if inputs.carried is not None:
        kind = "carried state"
    if len(able) > 1:
        T = inputs.q.shape[2]
        length = next((x for x in fastest.LENGTHS if x <= T), fastest.LENGTHS[-1])
        window = inputs.window or Window(0)
        size = (window.size, window.sinks)
        measured = _measured(tuple(able), *_kind(inputs), length, *size)
        if measured is not None:
            name, why = measured
    say(f"attention ({kind}, {inputs.q.device.type}, {inputs.q.dtype}): {name}, {why}")
    return name


def _kind(inputs: Inputs) -> tuple[Any, ...]:
    """The fields of :class:`fastest.Kind`, but for the length and the window."""
    q, bias = inputs.q, "none"
    if inputs.bias is not None:
        bias = "of each row" if inputs.bias.shape[0] > 1 else "shared by rows"
    elif inputs.by_distance is not None:
        bias = "by_distance" if inputs.slopes is None else "slopes"
    if inputs.key_bias is not None:
        bias += " and of keys"
    carried = 0 if inputs.carried is None else inputs.carried.shape[-1]
    return q.device, q.dtype, q.shape[1], inputs.k.shape[1], q.shape[-1], carried, bias


def _measured(candidates: tuple[str, ...], *kind: Any) -> tuple[str, str] | None:
    """The backend that is the fastest on this machine, and the times of all; None where nothing is
    to be measured. Its arguments are constants for torch.compile.
    """
    asked = fastest.Kind(*kind)
    row = fastest.choose(
        asked, candidates, lambda name, call: BACKENDS[name].compute(Inputs(**call))
    )
    if row is None:
        return None
    return row["fastest"] or candidates[0], fastest.in_words(row, asked.length)


def _preferences(inputs: Inputs) -> list[tuple[str, str]]:
    """(backend, reason): those that may be the fastest. On a GPU the times of those that do not
    refuse decide; where nothing is measured, the first of them is taken.
    """
    T, S = inputs.q.shape[2], inputs.k.shape[2]
    if inputs.q.device.type != "cuda":
        return (
            [("reference", "short sequences on a CPU")]
            if T < CPU_SDPA_FROM
            else [("sdpa", "fused on a CPU")]
        )
    if T != S or inputs.q.dtype not in (torch.float16, torch.bfloat16):
        return [("sdpa", "decoding or full precision")]
    if inputs.slopes is not None and inputs.carried is None:
        return [
            ("flash", "ALiBi slopes are native"),
            ("triton", "ALiBi slopes are native"),
            ("flex", "bias by distance"),
        ]
    if inputs.on_demand is not None:
        return [("triton", "the bias is computed from tables, for no pair in memory")]
    if inputs.biased:
        return [
            ("triton", "the bias is looked up by distance"),
            ("flex", "the bias is fused into the scores"),
            ("sdpa", "the bias as a mask"),
        ]
    if inputs.window is not None:
        return [
            ("flash", "windows are native"),
            ("flex", "blocks outside of the window are skipped"),
            ("sdpa", "the window as a mask"),
        ]
    if inputs.carried is not None:
        return [
            ("triton", "one pass over values and state"),
            ("sdpa", "values and state side by side"),
            ("flash", "values and state side by side"),
        ]
    return [("sdpa", "cuDNN or flash"), ("flash", "its own kernels")]


_said: dict[str, None] = {}


def say(text: str) -> None:
    """Log a choice once in a run."""
    if text not in _said:
        _said[text] = None
        log.info(text)


def choices() -> list[str]:
    """What was chosen since :func:`forget`, as the log has it."""
    return list(_said)


def forget() -> None:
    """A new run begins, whose choices are told again."""
    _said.clear()


def to_compile() -> None:
    """Tell torch.compile which of these functions it calls once, as it builds the graph, which then
    is one graph: what is logged, what is installed, what a library can do, and what was fast. None
    of them may be cached: torch.compile would look through the cache and trace what it finds.

    And that it is not to autocast in the backward pass, which would multiply in 16 bits what the
    forward pass multiplied in fp32: gradients are those of a model that is not compiled.
    """
    import torch._functorch.config as functorch_config

    functorch_config.backward_pass_autocast = "off"
    here = (say, flash.installed, _measured, cudnn.takes_wide_values, fla.installed)
    facts = runtime.installed, runtime.interpreted, runtime.too_old, runtime.too_small
    for fact in (*here, *facts):
        torch.compiler.assume_constant_result(fact)
