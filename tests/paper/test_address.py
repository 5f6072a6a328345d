"""The figure of fig_address."""

import re

from tape_exp.artifacts.figures import figures
from tape_exp.artifacts.view import View
from tests.artifacts.fakes import addition, record


def test_parts_are_drawn_for_models_that_have_several(tmp_path):
    """A panel for each size of :data:`SIZES`; RoPE has one part, and is left out."""
    both = {"causal/intact/x": 90.0, "causal/static/x": 40.0}
    every = [record("tape", 0, both), record("rope", 0, {"causal/intact/x": 80.0})]
    artifact = addition(
        rows={"size": {"5 digits": None, "12 digits": None}}
        | {"part": {"intact": None, "static": None}, "model": ["rope", "tape"]},
        columns={
            "trained (%)": {"metric": "causal/{part}/x"},
            "text, perplexity": {"metric": "causal/{part}/perplexity"},
        },
        figures=[{"kind": "tape_exp.paper.special.address.parts"}],
    )
    ((suffix, draw),) = figures(View(artifact, "smoke", every))
    assert suffix == ""
    texts = {*re.findall(r">([^<]+)</text>", draw(tmp_path / "a.svg").read_text())}
    assert {"5 digits", "intact", "static", "trained (%)", "TAPE"} <= texts
    assert not {"12 digits", "RoPE"} & texts
    assert [*figures(View(artifact, "smoke", every[1:]))] == []
