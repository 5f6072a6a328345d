"""The battery: a constructed solver is right through the task's own scoring, a wrong one is not."""

import pytest
import torch

from tape_exp.data.batch import IGNORE
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.battery import PROBLEMS, Battery
from tape_exp.tasks.sequences import SequenceTask
from tests.conftest import silent
from tests.tasks.solvers import NEXT, length

ARCH = Arch(layers=2, width=32, heads=4, ffn=32)
OPTIM = Optim(batch=8, max_steps=2, lr=1e-3)


def make(problem="copy", train_length=6, lengths=(6, 9), seed=0, samples=6) -> SequenceTask:
    return Battery(
        problem,
        arch=ARCH,
        optim=OPTIM,
        seed=seed,
        train_length=train_length,
        lengths=lengths,
        samples_per_length=samples,
    )


def symbols(task, row):
    return [task.vocabulary[token] for token in row if token]


class Solver:
    """A model that knows what follows a prefix, up to a length of row; beyond, it is wrong once."""

    def __init__(self, name: str, task: SequenceTask, reach: int) -> None:
        self.name, self.task, self.reach = name, task, reach

    def __call__(self, tokens, sampler=None):
        answers = torch.zeros_like(tokens)
        for row, answer in zip(tokens.tolist(), answers, strict=True):
            prefix = symbols(self.task, row)
            musts = [NEXT[self.name](prefix[: i + 1]) for i in range(len(prefix))]
            known = [i for i, must in enumerate(musts) if must]
            answer[known] = torch.tensor([self.task.number_of[musts[i]] for i in known])
            if self.asked(prefix, musts) > self.reach:
                answer[known[-1]] = 0
        return torch.nn.functional.one_hot(answers, self.task.arch.vocab).float()

    def asked(self, prefix, musts):
        """The length of the row, of which the inputs lack the last symbol."""
        if self.name == "dyck_2":
            return (len(prefix) + 1) // 2
        return length(self.name, prefix + [must for must in musts[-1:] if must])


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_solver_is_right_and_a_wrong_one_is_not(problem):
    task = make(problem)
    metrics = task.evaluate(Solver(problem, task, 9), silent).metrics
    rights = [value for name, value in metrics.items() if not name.endswith("_stderr")]
    assert rights == [100] * (10 + 4 * (problem == "flip_flop"))
    metrics = task.evaluate(Solver(problem, task, 6), silent).metrics
    assert metrics["id/exact_match"] == metrics["test/exact_match@6"] == 100
    assert metrics["ood/exact_match"] == metrics["test/exact_match@9"] == 0
    assert metrics["test/exact_match"] == 50
    scored = (task.test_batches()[1][1]["labels"] != IGNORE).sum(1)
    share = 100 * (1 - 1 / scored).mean()
    assert metrics["test/token_accuracy@9"] == pytest.approx(float(share), abs=1e-4)


def test_lengths_that_are_not_given_follow_the_trained_one():
    task = make("flip_flop", 8, None)
    evaluation = task.evaluate(Solver("flip_flop", task, 8), silent)
    assert task.axes == {"length (instructions)": [4, 8, 12, 16, 32, 64]}
    assert evaluation.heatmap.trained == (2, 2)
    assert evaluation.heatmap.to_rows()[0] == [100, 100, 0, 0, 0, 0]
    assert evaluation.metrics["sparse/exact_match"] == 100
    assert (
        "sparse/exact_match"
        not in task.evaluate(Solver("flip_flop", task, 8), silent, limit=1).metrics
    )


def test_the_test_is_of_different_rows_and_does_not_depend_on_the_seed():
    task, other = make(lengths=(6, 64), samples=60), make(seed=1)
    for _, batch in task.test_batches():
        assert len(batch["inputs"].unique(dim=0)) == 60
    assert other.test_fingerprint() == make().test_fingerprint()
    assert other.fingerprint() != make().fingerprint()
    own, fewer = (t.test_batches()[0][1]["inputs"] for t in (make(samples=50), make()))
    assert torch.equal(own[:6], fewer)


def test_training_shows_every_length_and_stays_within_the_model():
    for name in PROBLEMS:
        task = make(name, 8, None)
        batch = task.train_batch(10**12, 200)
        assert batch["inputs"].shape == batch["labels"].shape == (200, task.arch.train_length)
        assert batch["inputs"].max() < task.arch.vocab
        stream = task.rows(1, 0, 200, task.trained, task.draws(8))
        rows = [symbols(task, row) for row, _ in stream]
        assert {length(name, row) for row in rows} == set(task.trained)
        longest = max(batch["inputs"].shape[1] for _, batch in task.test_batches())
        assert longest == task.arch.max_length
