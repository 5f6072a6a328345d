"""Words and files that would run something, lead elsewhere, or tell a secret."""

import json
import os
import pickle
import random
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tape_exp.machine.files import sha256
from tests.campaign import keys
from tests.campaign.files import Attempt, replaced
from tests.campaign.server import Commands, Outcome
from tests.campaign.world import ADDITION, TINY, kept, lighten, take_away
from tests.campaign.writes import fake_slurm

SECRET = "hf_" + "k3Jx9QpLmN7rTvW2yZ4aBcDeFgHiJkLmNo"
ESCAPE = "\x1b]0;title\x07\x1b[31m"
JINJA = "{{ cycler.__init__.__globals__.os.system('touch CANARY') }}"
MARKUP = "<img src=x onerror=alert(1)>"


def strings(canary: Path) -> dict[str, str]:
    """Name -> a hostile value; ``canary`` appears if one of them is run."""
    return {
        "command": f"$(touch {canary})",
        "backticks": f"`touch {canary}`",
        "after a semicolon": f"x; touch {canary}",
        "after a newline": f"x\ntouch {canary}\n",
        "after U+2028": f"x\u2028touch {canary}",
        "carriage return": f"x\rtouch {canary}",
        "quotes": f"'\"; touch {canary} #",
        "glob": "* ? [a-z] ~ {1,2}",
        "upwards": "../../../outside",
        "absolute": "/etc/passwd",
        "environment": "${oc.env:HF_TOKEN}",
        "a resolver": "${hydra:runtime.cwd}",
        "escape codes": ESCAPE,
        "markup": MARKUP,
        "jinja": JINJA.replace("CANARY", str(canary)),
        "a tag": f"!!python/object/apply:os.system ['touch {canary}']",
    }


def quoted(value: str) -> str:
    """As a value that Hydra's grammar takes literally."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


class Calls:
    """A pickle of this touches a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def files(world: Path, canary: Path) -> dict[str, tuple[Callable[[], object], tuple[str, ...]]]:
    """Name -> (what plants a file, the command that reads it)."""
    (config,) = (world / "victim").rglob("config.yaml")
    run = config.parent
    checkpoint = max((run / "checkpoints").glob("*.ckpt"))
    signature = checkpoint.with_name(checkpoint.name + ".json")
    again = ("run", *ADDITION, "task.optim.max_steps=6", "runs=victim")
    onward = ("run", *ADDITION, f"checkpoint={checkpoint}", "runs=onward")
    folder = world / "llama"

    def pickled() -> None:
        checkpoint.write_bytes(pickle.dumps(Calls(canary)))
        told = json.loads(signature.read_text()) if signature.exists() else {}
        if told:
            signature.write_text(json.dumps(told | {"sha256": sha256(checkpoint)}))

    def llama(header: bytes, more: dict[str, Any]) -> None:
        folder.mkdir(exist_ok=True)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        sizes |= {"intermediate_size": 16, "vocab_size": 64, "model_type": "llama"}
        (folder / "config.json").write_text(json.dumps(sizes | more))
        (folder / "model.safetensors").write_bytes(header)
        (folder / "code.py").write_text(f"open({str(canary)!r}, 'w')")

    def lies(header: dict[str, Any], length: int | None = None) -> bytes:
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text) if length is None else length) + text

    entry = {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}
    loaded = ("run", "task=extend", "model=rope", f"checkpoint={folder}", *TINY)
    questions = ("run", "task=benchmarks", "model=rope", "task.tasks=[mine]", "scale.text=local")
    questions += (f"task.path={world / 'lm'}", *TINY)
    return {
        "a pickle as a checkpoint, going on": (pickled, again),
        "a pickle as a checkpoint, beginning from it": (pickled, onward),
        "a config that constructs": (
            lambda: config.write_text(
                config.read_text() + f"\nx: {{_target_: os.system, a: {canary}}}\n"
            ),
            ("tape_exp.export", str(run), "hostile-export"),
        ),
        "a config that reads the environment": (
            lambda: config.write_text(config.read_text() + "\nx: ${oc.env:HF_TOKEN}\n"),
            ("tape_exp.export", str(run), "hostile-export"),
        ),
        "a safetensors header that lies about sizes": (
            lambda: llama(lies({"model.embed_tokens.weight": entry}), {}),
            loaded,
        ),
        "a safetensors header without an end": (lambda: llama(lies({}, 1 << 60), {}), loaded),
        "a Llama folder with code of its own": (
            lambda: llama(lies({}), {"auto_map": {"AutoModelForCausalLM": "code.Model"}}),
            loaded,
        ),
        "a task of lm-eval with a function": (
            lambda: lm_eval(world / "lm", f"!function {world}/lm/code.run", canary),
            questions,
        ),
        "a task of lm-eval with a template": (
            lambda: lm_eval(world / "lm", quoted(strings(canary)["jinja"]), canary),
            questions,
        ),
    }


def lm_eval(folder: Path, text: str, canary: Path) -> None:
    """A folder with one task of lm-eval's."""
    folder.mkdir(exist_ok=True)
    (folder / "code.py").write_text(f"def run(doc):\n    open({str(canary)!r}, 'w')\n")
    (folder / "data.jsonl").write_text('{"question": "x", "answer": 0}\n' * 3)
    keys = [
        "task: mine",
        "dataset_path: json",
        f"dataset_kwargs: {{data_files: {{test: {folder}/data.jsonl}}}}",
        "test_split: test",
        "output_type: multiple_choice",
        f"doc_to_text: {text}",
        "doc_to_target: answer",
        'doc_to_choice: ["a", "b"]',
    ]
    (folder / "mine.yaml").write_text("\n".join(keys) + "\n")


def attempts(do: Commands, world: Path, seed: int) -> Iterator[Attempt]:
    """Each hostile value for every key of text, in every field of a record, and each file."""
    generator = random.Random(seed)
    lighten(world)
    fake_slurm(world)
    canary = world / "canary"
    path = {"PATH": f"{world}/bin:{os.environ['PATH']}", "HF_TOKEN": SECRET}
    for name in ("victim", "kept"):
        outcome = do("run", *ADDITION, "task.optim.max_steps=6", f"runs={name}")
        assert outcome.status == 0, outcome.err
    for name, (plant, command) in files(world, canary).items():
        with kept(world / "victim"):
            plant()
            outcome = do(*command, environment=path)
            yield name, outcome, harm(outcome, world, canary)
    texts = [
        case for case, sort in keys.cases(seed) if case.kind == "empty" and sort in (str, None)
    ]
    hostile = [(case, name) for case in texts for name in strings(canary)]
    generator.shuffle(hostile)
    records = sorted((world / "results" / "records").glob("*.json"))
    for number, (case, name) in enumerate(hostile):
        value = strings(canary)[name]
        word = case.words[-1].partition("=")[0] + "=" + quoted(value)
        command: tuple[str, ...] = ("run", *case.words[:-1], word, "runs=hostile")
        if case.key in ("runs", "cache"):
            continue
        if number % 4 == 0:
            command = ("launch.sweep", *case.words[:-1], word, "runs=hostile")
        elif number % 4 == 1:
            record = generator.choice(records)
            with kept(world / "results"):
                changed = replaced(json.loads(record.read_text()), value, generator)
                record.write_text(json.dumps(changed))
                outcome = do("tape_exp.report", "--out", "page.html", environment=path)
                yield f"{name} in a record, report", outcome, harm(outcome, world, canary)
                outcome = do("tape_exp.paper", "render", environment=path)
                yield f"{name} in a record, render", outcome, harm(outcome, world, canary)
            continue
        outcome = do(*command, environment=path)
        script = next((world / "hostile").rglob("script.sh"), None)
        yield f"{name} for {case.key}, {command[0]}", outcome, harm(outcome, world, canary)
        if script is not None:
            away = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "0"}  # where there is no python
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.run(["bash", script], cwd=world, env=away, timeout=60, check=False, **quiet)
            yield f"{name} for {case.key}, its script", outcome, harm(outcome, world, canary)
        take_away(world / "hostile")


def harm(outcome: Outcome, world: Path, canary: Path) -> str:
    """What should not have happened."""
    if canary.exists():
        canary.unlink()
        return "a command was run"
    if "\x1b]0;" in outcome.out + outcome.err:
        return "escape codes reached the terminal"
    if SECRET in outcome.out + outcome.err:
        return "a secret was printed"
    for place in ("hostile", "victim", "onward", "hostile-export", "results/tables", "page.html"):
        for found in [world / place, *(world / place).rglob("*")]:
            if found.is_file() and (content := found.read_bytes()):
                if SECRET.encode() in content:
                    return f"a secret is in {found.name}"
                if found.suffix == ".html" and MARKUP.encode() in content:
                    return f"markup is in {found.name}"
    if (world.parent / "outside").exists():
        return "a file lies outside"
    return ""
