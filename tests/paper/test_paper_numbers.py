"""results/paper.yaml against the tables and captions of the paper's source, where that lies beside
the project.
"""

import re

import pytest

from tape_exp.artifacts import artifact
from tape_exp.settings.folders import ROOT
from tests.settings.test_config import RECIPES

SOURCE = ROOT.parent / "shared" / "paper" / "tape.tex"
pytestmark = pytest.mark.skipif(
    not SOURCE.exists(), reason="the paper's source, ../shared/paper/tape.tex, is not here"
)

NAMES = {"LoRA": "lora", "LongLoRA": "longlora", "Theta Scaling": "theta", "ThetaScaling": "theta"}
NAMES |= {"TAPE (Ours)": "tape", "w/o EQ": "tape_no_equivariance"}
SETS = [
    "qasper",
    "contract_nli",
    "narrative_qa",
    "quality",
    "qmsum",
    "summ_screen_fd",
    "gov_report",
]
LESSONS = [f"mmlu_{name}" for name in ("humanities", "social_sciences", "stem", "other")]
LESSONS += ["arc_challenge", "arc_easy"]
SHIFTS = ["add_tokens", "shift_ids"]
ABLATIONS = ["rope", "tape_no_attention", "tape_no_feed_forward", "tape", "tape_neither"]
ABLATIONS += ["tape_no_tensor", "tape_no_equivariance"]


def ours(name: str) -> dict:
    """What results/paper.yaml says of an artifact."""
    return artifact.reported()[name]


def table(label: str) -> list[list[str]]:
    """The cells of every row of the paper's table with a number or a layer after its first cell,
    without LaTeX's commands.
    """
    start, end = r"\\begin{table\*?}", r"\\end{table"
    one = rf"{start}(?:(?!{end}).)*\\label{{tab:{label}}}.*?{end}"
    (found,) = re.findall(one, SOURCE.read_text(), re.DOTALL)
    found = found.replace(r"\ding{51}", "yes").replace(r"\ding{55}", "no")
    found = re.sub(r"\\(?:textbf|mathbf)\{([^{}]*)\}", r"\1", found)
    rows = [[cell.strip() for cell in row.split("&")] for row in found.split(r"\\")]
    kept = [row for row in rows if any(re.match(r"(Layer )?\d", cell) for cell in row[1:])]
    return [[re.split(r"\n|\\midrule|\\toprule", row[0])[-1].strip(), *row[1:]] for row in kept]


def numbers(cells: list[str]) -> list[float]:
    """The numbers that cells begin with."""
    return [float(re.match(r"[\d.]+", cell)[0]) for cell in cells if re.match(r"\d", cell)]


def named(rows: list[list[str]]) -> dict[str, list[float]]:
    """Model or method -> the numbers of its row."""
    return {
        NAMES.get(row[0], row[0].lower().replace(" (ours)", "")): numbers(row[1:]) for row in rows
    }


ADDITION = {"fig_addition": "arithmetic", "fig_addition_20": "arithmetic_app"}


@pytest.mark.parametrize(("name", "label"), [*ADDITION.items(), ("fig_addition_yarn", "yarn")])
def test_means_of_the_addition_figures_are_those_of_the_captions(name, label):
    text = SOURCE.read_text()
    caption = text[: text.index(rf"\label{{fig:{label}}}")].rsplit(r"\caption", 1)[-1]
    values, order = re.search(
        r"average accuracy.* is ((?:[\d.]+\\%(?:, | and | respectively)*)+) for (.*)", caption
    ).groups()
    order = re.sub(r"~?\\citep?\{[^}]*\}|our ", "", order).replace("TAPE + YaRN", "tape_yarn")
    models = [word.strip(" .}\n").lower() for word in re.split(r",| and ", order)]
    numbers = map(float, re.findall(r"[\d.]+(?=\\%)", values))
    told = dict(zip(filter(None, models), numbers, strict=True))
    assert ours(name)["values"] == told
    assert told.keys() <= set(artifact.load(name).rows[0].dimensions["model"]), (
        "it runs what the figure shows"
    )


def test_the_figure_of_other_encodings_repeats_the_papers_mean():
    values = ours("fig_addition_contextual")["values"]
    assert values.items() <= ours("fig_addition")["values"].items()


def test_scrolls():
    scores, rows = dict(ours("tab_scrolls")["scores"]), named(table("scrolls"))
    del scores["nope"]
    assert scores == {model: dict(zip(SETS, rows[model], strict=True)) for model in scores}


def test_perplexity_after_extension():
    found, rows = ours("tab_tune_ppl"), table("tune_ppl")
    assert numbers(rows[0][1:]) == found["lengths"]
    assert found["perplexity"] == {"proof_pile": named(rows[1:5]), "pg19": named(rows[5:9])}


def test_operations_and_parameters():
    order, found = ["tape", "rope", "fire", "t5"], ours("tab_flops")
    told = [dict(zip(order, numbers(row[1:]), strict=True)) for row in table("flops")]
    assert [found["flops_g"], found["macs_g"], found["parameters_m"]] == told


def test_time_of_attention():
    time, throughput = (numbers(row[1:]) for row in table("speed"))
    order, found = ["tape", "tape_separate", "rope", "fire", "t5"], ours("tab_speed")["time_ms"]
    assert found == pytest.approx(
        dict(zip(order, (value / 10 for value in time), strict=True)), rel=1e-12
    )
    assert [round(1000 / found[name]) for name in order] == pytest.approx(throughput, rel=2e-3), (
        "the paper's other row"
    )


def test_ablations():
    found, rows = ours("tab_ablation"), table("ablation")
    assert numbers(rows[0][2:]) == found["lengths"]
    told = [numbers(row[2:]) for row in rows[1:]]
    assert told.pop() == told[3], "the whole of TAPE stands in both halves"
    assert found["perplexity"] == dict(zip(ABLATIONS, told, strict=True))


def test_width_of_the_update():
    found, rows = ours("tab_ablation_I"), table("ablation_B")
    assert numbers(rows[0][2:]) == found["lengths"]
    by_model = dict(
        zip(artifact.load("tab_ablation_I").rows[0].dimensions["model"], rows[1:], strict=True)
    )
    assert found["perplexity"] == {name: numbers(row[2:]) for name, row in by_model.items()}
    assert found["added_m"] == {name: float(row[0]) for name, row in by_model.items()}


def test_shifts():
    found, every = ours("tab_shift"), table("shift")
    rows = [row for row in every if row[0] in ("RoPE", "TAPE", "w/o EQ")]
    layers, head = found["layers"], next(row for row in every if "Layer 1" in row)
    assert head[1:] == [f"Layer {layer}" for layer in layers * len(SHIFTS)]
    for measure, half in (("attention", rows[:3]), ("products", rows[3:])):
        for place, shift in enumerate(SHIFTS):
            part = slice(place * len(layers), (place + 1) * len(layers))
            told = {name: values[part] for name, values in named(half).items()}
            assert found[measure][shift] == told, (measure, shift)


def test_benchmarks():
    told = {}
    for row in table("bench"):
        cells = [[float(part) for part in cell.split(" ± ")] for cell in row[1:]]
        told[NAMES.get(row[0], row[0].lower())] = dict(zip(LESSONS, cells, strict=True))
    assert ours("tab_bench")["accuracy"] == told


def test_recipes():
    """Batch, steps and learning rate, in the order of the paper's columns."""
    line = r"^ *(Batch size|Number of iterations|Learning rate) *&(.*)\\\\$"
    rows = dict(re.findall(line, SOURCE.read_text(), re.MULTILINE))
    batches = [int(cell) for cell in rows["Batch size"].split("&")]
    steps = [1000 * int(cell.strip(" k")) for cell in rows["Number of iterations"].split("&")]
    rates = re.findall(r"(\d) \\times 10\^\{(-\d)\}", rows["Learning rate"])
    rates = [float(f"{digit}e{power}") for digit, power in rates]
    assert [*RECIPES.values()] == [*zip(batches, steps, rates, strict=True)]
