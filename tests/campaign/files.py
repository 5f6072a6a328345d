"""Every file that a command reads, damaged in every way; the commands that read it name it."""

import json
import math
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.campaign.server import Commands, Outcome
from tests.campaign.world import ADDITION, TRAINED, kept, lighten, take_away

SET = {"meta": {"pile_set_name": "Github"}}  # conf/text/github.yaml takes only such rows
Attempt = tuple[str, Outcome, str]  # what was tried, how it ended, what is wrong besides


def corpus(folder: Path) -> Path:
    """A small corpus of JSON lines, in the three splits."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(0)
    words = ["the", "angle", "of", "a", "token", "turns", "with", "its", "place", "and", "sums"]
    for split, count in (("train", 60), ("validation", 12), ("test", 12)):
        rows = [{"text": " ".join(generator.choices(words, k=200)), **SET} for _ in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def text_words(folder: Path, *more: str) -> list[str]:
    """A language model on the text in ``folder``."""
    words = ["task=c4", "scale.text=local", f"task.text.path={folder}", "model=rope", *TRAINED]
    words += [
        f"task.tests.github.path={folder}",
        "task.train_length=32",
        "task.windows.lengths=[32]",
    ]
    return [*words, "task.tokenizer.kind=bpe", "task.tokenizer.vocab=300", *more]


def scrolls_words(*more: str) -> list[str]:
    """Fine-tuning and answers, which are written as they come."""
    words = ["task=scrolls", "task.dataset=qmsum", "scale.text=builtin", "model=rope", *TRAINED]
    words += ["task.tokenizer.kind=byte", "task.max_length=128", "task.new_tokens=4"]
    return [*words, "task.validation_rows=4", *more]


def runs_of(world: Path) -> dict[str, list[str]]:
    """Folder of a run, relative to the world -> its words."""
    text = corpus(world / "corpus")
    return {
        "whole": [*ADDITION, "runs=whole"],
        "begun": [*ADDITION, "task.optim.max_steps=6", "runs=begun"],
        "text": text_words(text, "runs=text", "cache=text/cache"),
        "adapter": [*ADDITION, "peft=lora", "checkpoint=whole", "runs=adapter"],
        "answers": scrolls_words("runs=answers"),
    }


def prepare(do: Commands, world: Path) -> dict[str, list[str]]:
    """Make the runs; one of them is stopped in its middle."""
    runs = runs_of(world)
    for name, words in runs.items():
        if name == "adapter":
            (checkpoint,) = (world / "whole").rglob("config.yaml")
            runs[name] = words = [
                f"checkpoint={checkpoint.parent}" if w.startswith("checkpoint=") else w
                for w in words
            ]
        outcome = do("run", *words, limit=240)
        assert outcome.status == 0, outcome.err
    (done,) = (world / "begun").rglob("DONE")
    done.unlink()
    (done.parent / "record.json").unlink()
    for path in (done.parent / "checkpoints").glob("step00000006.ckpt*"):
        path.unlink()
    local = world / "conf" / "local"
    (local / "cluster.yaml").write_bytes((local / "example.yaml").read_bytes())
    return runs


def damages(path: Path, generator: random.Random) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name of a damage, and what does it to a file."""
    content = path.read_bytes()
    middle = len(content) // 2

    def flip() -> None:
        changed = bytearray(content)
        if changed:
            changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
        path.write_bytes(changed)

    def link() -> None:
        outside = path.parents[1] / f"outside-{path.name}"
        outside.write_bytes(content)
        path.unlink()
        path.symlink_to(outside)

    def directory() -> None:
        path.unlink()
        path.mkdir()

    yield "missing", path.unlink
    yield "empty", lambda: path.write_bytes(b"")
    yield "cut short", lambda: path.write_bytes(content[:middle])
    yield "one bit", flip
    yield "zeros", lambda: path.write_bytes(bytes(len(content)))
    yield "unreadable", lambda: path.chmod(0)
    yield "a directory", directory
    yield "a link to elsewhere", link
    if path.suffix in (".json", ".jsonl"):
        for name, value in (
            ("a list", []),
            ("not a number", math.nan),
            ("huge", 10**400),
            ("a word", "x"),
            ("null", None),
        ):
            yield name, lambda value=value: path.write_text(mutated(content, value, generator))
    if path.suffix in (".yaml", ".json", ".jsonl"):
        yield "deep", lambda: path.write_text("[" * 100_000)
        yield "a wrong type", lambda: path.write_text("[1, 2]\n")


def mutated(content: bytes, value: Any, generator: random.Random) -> str:
    """JSON, or lines of it, with ``value`` in the place of something."""
    try:
        return json.dumps(replaced(json.loads(content), value, generator))
    except json.JSONDecodeError:
        lines = content.decode().splitlines()
        which = generator.randrange(len(lines))
        lines[which] = json.dumps(replaced(json.loads(lines[which]), value, generator))
        return "\n".join(lines) + "\n"


def replaced(node: Any, value: Any, generator: random.Random) -> Any:
    """A copy of a tree of JSON in which one entry, at a random depth, is ``value``."""
    if not isinstance(node, dict | list) or not node:
        return value
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    key = generator.choice(keys)
    copy: Any = dict(node) if isinstance(node, dict) else list(node)
    deeper = isinstance(node[key], dict | list) and generator.random() < 0.8
    copy[key] = replaced(node[key], value, generator) if deeper else value
    return copy


def readers(path: Path, world: Path, runs: dict[str, list[str]]) -> Iterator[tuple[str, ...]]:
    """The commands that read a file of the world."""
    top, *_ = path.relative_to(world).parts
    if top in runs:
        words = runs[top]
        yield "run", *words
        yield "launch.status", *words
        run = next((p.parent for p in (world / top).rglob("config.yaml")), world / top)
        if top in ("whole", "text", "adapter"):
            yield "tape_exp.export", str(run), "exported"
        if top == "whole":
            yield (
                "run",
                "task=patterns",
                "model=rope",
                f"checkpoint={run}",
                "trainer=cpu",
                "logger=none",
            )
    elif top == "results":
        yield "tape_exp.paper", "render"
        yield "tape_exp.report", "--out", "page.html"
    else:
        yield "launch.sweep", "--dry-run", "model=rope,nope"


def subjects(world: Path, runs: dict[str, list[str]], generator: random.Random) -> list[Path]:
    """Every file of the runs; of the records and measurements, some."""
    found = [p for name in runs for p in sorted((world / name).rglob("*")) if p.is_file()]
    found = [p for p in found if "events.out" not in p.name and p.suffix not in (".png", ".lock")]
    results = world / "results"
    records = sorted((results / "records").glob("*.json"))
    found += (
        generator.sample(records, min(len(records), 8)) + sorted(results.glob("speed/*.json"))[:3]
    )
    found += [p for p in sorted(results.glob("*")) if p.suffix in (".json", ".yaml")]
    return [*found, world / "conf" / "local" / "cluster.yaml"]


def metrics(world: Path, name: str) -> Any:
    """Of the record of the run below a folder."""
    path = next((world / name).rglob("record.json"), None)
    return json.loads(path.read_text())["metrics"] if path and path.is_file() else None


def attempts(do: Commands, world: Path, seed: int) -> Iterator[Attempt]:
    """Damage a file, give a command that reads it, and put everything back."""
    generator = random.Random(seed)
    lighten(world)
    runs = prepare(do, world)
    right = {name: metrics(world, name) for name in runs}
    tried = [
        (path, damage, command)
        for path in subjects(world, runs, generator)
        for damage, _ in damages(path, generator)
        for command in readers(path, world, runs)
    ]
    generator.shuffle(tried)
    with kept(world / "begun"):
        assert do("run", *runs["begun"]).status == 0
        right["begun"] = metrics(world, "begun")
    for path, damage, command in tried:
        top = path.relative_to(world).parts[0]
        with kept(world / top):
            inflict = dict(damages(path, generator))[damage]
            inflict()
            outcome = do(*command)
            yield (
                f"{damage}: {path.relative_to(world)}",
                outcome,
                wrong(outcome, command, top, world, right),
            )
            if path.exists() and not path.is_symlink():
                os.chmod(path, 0o755)
        take_away(world / "exported")


def wrong(
    outcome: Outcome, command: tuple[str, ...], top: str, world: Path, right: dict[str, Any]
) -> str:
    """Whether a run that ended well has other metrics than the undamaged one."""
    if command[0] == "run" and command[1] != "task=patterns" and outcome.status == 0:
        return "" if metrics(world, top) == right[top] else "other metrics"
    return ""
