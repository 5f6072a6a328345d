"""The tables of a bench: scores, differences to RoPE, and the chosen learning rates."""

from collections.abc import Mapping, Sequence

from tape_exp.bench.board import BASELINE, Board
from tape_exp.results.statistics import Value, lead
from tape_exp.results.store import commits
from tape_exp.results.tables import Cell, Column, Table, span
from tape_exp.settings.naming import display_name

ALIKE = 1.0  # point, between shares at trained lengths that do not tell rates apart

CellsByModel = dict[str, dict[str, Cell]]
"""Model -> column -> what is in the cell."""


def tables_of(board: Board) -> dict[str, Table]:
    """Make every table of a bench, by what its file's name ends in."""
    return {
        "": scores_table(board),
        "-differences": leads_table(board),
        "-rates": rates_table(board),
    }


def scores_table(board: Board) -> Table:
    """Make the table of encodings × tasks, by mean rank."""
    rows = {model: score_row(board, model) for model in board.order}
    names = [*board.entries, "seeds", "commit"]
    if board.ranks:  # of two models or more
        if BASELINE in board.ranks:
            names = [f"mean difference to {BASELINE}", *names]
        names = ["mean rank", *names]
    return make_table(board, rows, names, caption_of(board), digits=1)


def score_row(board: Board, model: str) -> dict[str, Cell]:
    """Make the row of a model: scores, ranks, seeds and commits."""
    row: dict[str, Cell] = {**board.scores[model]}
    if model in board.ranks:
        row["mean rank"] = Value(board.ranks[model])
        if model != BASELINE and BASELINE in board.ranks:
            difference = board.means[model] - board.means[BASELINE]
            row[f"mean difference to {BASELINE}"] = Value(difference)
    seeds = [len(value.runs) for value in board.scores[model].values()]
    row["seeds"] = span(str(min(seeds)), str(max(seeds)), "–")
    row["commit"] = commits(board.chosen_runs(model))
    return row


def leads_table(board: Board) -> Table:
    """Make the table of the paired difference of each model to RoPE on each task."""
    baseline = board.scores.get(BASELINE, {})
    rows: CellsByModel = {}
    for model in board.order:
        if model == BASELINE:
            continue
        rows[model] = {}
        for task, value in board.scores[model].items():
            if task in baseline:
                rows[model][task] = lead(value, baseline[task])
    caption = (
        f"Difference to {display_name(BASELINE)} in percentage points over the seeds that both "
        "have, ± half of its 95 % interval (Student's t over pairs)."
    )
    return make_table(board, rows, [*board.entries], caption, digits=1, signed=True)


def rates_table(board: Board) -> Table:
    """Make the table of the learning rate that each model has on each task."""
    rows: CellsByModel = {}
    for model in board.order:
        rows[model] = {task: rate_cell(board, model, task) for task in board.entries}
    caption = (
        "The learning rate of the lowest validation loss on further rows of the trained "
        "lengths; every model tried the same rates for as many steps. At the edge the best may "
        "lie beyond. In brackets: the range of the scores beyond the trained lengths, at the "
        "first seed, of the rates that are right within those lengths as often, to "
        f"{ALIKE:g} point; the loss hardly tells these apart."
    )
    return make_table(board, rows, [*board.entries], caption)


def rate_cell(board: Board, model: str, task: str) -> Cell:
    """Write a chosen rate: ``0.003 (21 to 40)``, ``0.01, at the edge``."""
    rate = board.choices.get((model, task))
    if rate is None:
        return None
    text = rate
    if rate in (board.rates[0], board.rates[-1]):
        text += ", at the edge"
    scores = scores_of_like_rates(board, model, task, rate)
    if len(scores) > 1:
        text += f" ({min(scores):.0f} to {max(scores):.0f})"
    return Value(float(rate), text=text)


def scores_of_like_rates(board: Board, model: str, task: str, rate: str) -> list[float]:
    """List the scores of the rates that are right within the trained lengths as often as the
    chosen one, to :data:`ALIKE`; it is one of them.
    """
    entry = board.entries[task]
    searched = board.searched[model, task]
    of_choice = searched[rate]["metrics"].get(entry.trained) or 0
    scores = []
    for run in searched.values():
        trained = run["metrics"].get(entry.trained)
        if trained is not None and trained >= of_choice - ALIKE:
            scores.append(run["metrics"][entry.metric])
    return scores


def make_table(
    board: Board,
    rows: CellsByModel,
    names: Sequence[str],
    caption: str,
    digits: int = 2,
    signed: bool = False,
) -> Table:
    """Make a table of these columns; ``digits`` and ``signed`` are of those that are tasks."""
    columns = [Column("model")]
    for name in names:
        if name in board.entries:
            columns.append(Column(name, digits=digits, signed=signed))
        else:
            columns.append(Column(name))
    cells: list[Mapping[str, Cell]] = []
    for model, row in rows.items():
        cells.append({"model": board.labels[model], **row})
    return Table(columns, cells, ["model"], caption)


def caption_of(board: Board) -> str:
    """Say what the table of scores measures."""
    floors = ", ".join(f"{task} {score:.0f}" for task, score in board.guesses.items())
    search = board.cells.artifact
    with_words = "".join(f", with {word}" for word in search.overrides)
    text = (
        f"{search.title}: right tokens in percent in rows longer than those of training "
        "(of addition right rows, of groups right states, of retrieval right answers). A token "
        "is scored after the right ones before it; the best guess from nearby reaches "
        f"{floors}. Scale {board.cells.scale}{with_words}; learning rates "
        f"{', '.join(board.rates)}, chosen by "
        "the lowest validation loss on trained lengths at the first seed. Intervals are over "
        "seeds and samples, and do not cover the choice of the rate."
    )
    test = board.rank_test()
    if test is None:
        return f"{text} Ranks are not tested: that needs 3 models, 5 tasks and 2 seeds."
    return (
        f"{text} Mean rank over {len(board.entries)} tasks, 1 is best: Friedman's test has p = "
        f"{test.p:.2g}; two models are told apart from {test.difference:.2f} on (Nemenyi, 5 %)."
    )
