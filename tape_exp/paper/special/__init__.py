"""What an artifact needs beyond its YAML, a file for each; the YAML names it by the keys below."""

from tape_exp.paper import verdicts
from tape_exp.paper.special import (
    addition_trend,
    encodings,
    extension_rates,
    flops,
    quality_examples,
    scrolls,
    speed,
    theory,
)

TABLES = {  # source:
    "speed": speed.speed,
    "theorem": theory.of_report(theory.theorem),
    "propositions": theory.of_report(theory.propositions),
    "answers": quality_examples.answers,
}
FINISH = {"ranked": encodings.ranked, "chosen": extension_rates.chosen}  # finish:
VERDICTS = {  # rule: of a claim
    "flops": flops.flops_verdict,
    "speed": speed.speed_verdict,
    "examples": lambda view, claim: verdicts.Verdict(holds=verdicts.UNTESTED),
}
PUBLISHED = {"trend": addition_trend.trend_published}  # published: of a claim
FLOORS = {"scrolls": scrolls.scrolls_floor}  # floor: of a claim
