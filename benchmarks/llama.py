"""A Llama here beside the same one in transformers: prefill, decoding, perplexity, a LoRA step.

``python -m benchmarks.llama data/smollm2`` writes a line of ``results/speed.jsonl``. Both have the
same weights, dtype and threads; transformers has ``attn_implementation="sdpa"`` and, in the step,
peft. Cases take turns, and ratios are medians of the rounds' own ratios. The peak memory of each
case is that of a process of its own.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor, nn

from benchmarks.common import DEVICE, parser, write_record
from benchmarks.timing import round_robin
from tape_exp.data.batch import IGNORE
from tape_exp.machine.hardware import machine_name
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import decode, new_cache
from tape_exp.models.head import LastLogits, TokenNll, TotalLoss
from tape_exp.models.layers import kinds_of
from tape_exp.models.llama import load
from tape_exp.models.peft import Lora, Matrix
from tape_exp.runs.llama_base import apply_llama_config
from tape_exp.runs.manifest import environment_info
from tape_exp.runs.starting_weights import starting_checkpoint
from tape_exp.settings.commands import command
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch
from tape_exp.training.module import loss_sum

CONTEXT, WRITTEN = 1024, 64  # tokens that are read, and written after them
STRIDE = 512
RANK = 8
TARGETS: tuple[Matrix, ...] = ("q", "k", "v", "o")
Case = Callable[[], Any]


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the record."""
    made = parser("llama", "A Llama here beside the same one in transformers.")
    made.add_argument("checkpoint", help="as checkpoint= takes it")
    made.add_argument("--only", nargs="*", choices=CASES, metavar="CASE", help=", ".join(CASES))
    made.add_argument("--memory", nargs=2, metavar=("CASE", "WHOSE"), help="print one peak in MB")
    args = made.parse_args(arguments)
    cfg = compose_config(["task=perplexity", "model=rope", f"checkpoint={args.checkpoint}"])
    folder = starting_checkpoint(cfg)
    if folder is None or not folder.is_dir():
        raise ConfigError(f"{args.checkpoint} is no Llama.")
    if args.memory:
        print(json.dumps(peak_memory(folder, *args.memory)))
        return 0
    record: dict[str, Any] = {"machine": machine_name(DEVICE), **environment_info()}
    record |= {"checkpoint": folder.name, "dtype": str(DTYPE).removeprefix("torch."), "rows": []}
    ours, theirs = load_ours(folder), load_theirs(folder)
    for name in args.only or CASES:
        ratios = {**compare(name, ours, theirs), **memory(args.checkpoint, name)}
        record["rows"].append({"what": name, **ratios})
        print(json.dumps(record["rows"][-1]), flush=True)
        write_record("llama", record, args.out)
    print(args.out)
    return 0


DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32


def load_ours(folder: Path) -> Decoder:
    """The decoder with the weights of the folder."""
    words = ["task=perplexity", "model=rope", f"checkpoint={folder}"]
    cfg = apply_llama_config(compose_config(words), folder)
    arch = Arch(**cfg.task.arch, max_length=8192, train_length=8192)
    decoder = Decoder(arch, kinds_of(OmegaConf.to_container(cfg.model)), blank=True)
    load(decoder, folder)
    return decoder.to(DEVICE, DTYPE).eval()


def load_theirs(folder: Path) -> Any:
    """The model of transformers."""
    from transformers import AutoModelForCausalLM

    asked: Any = {"dtype": DTYPE, "attn_implementation": "sdpa"}
    model: Any = AutoModelForCausalLM.from_pretrained(folder, **asked)
    return model.to(DEVICE).eval()


def tokens_of(rows: int, length: int) -> Tensor:
    """Rows of random tokens."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(10, 32_000, (rows, length), generator=draw).to(DEVICE)


# Each gives what is timed, and leaves the model as it was.


def prefill(model: Any, is_ours: bool, length: int) -> Case:
    """The logits of the last token of a prompt."""
    tokens = tokens_of(1, length)

    @torch.inference_mode()
    def case() -> Tensor:
        if is_ours:
            cache = new_cache(model, length, None, 1)
            return model(tokens, cache=cache, output=LastLogits())
        return model(tokens, logits_to_keep=1, use_cache=True).logits

    return case


def decoding(model: Any, is_ours: bool, rows: int) -> Case:
    """So many greedy tokens, with those before them in a cache."""
    tokens = tokens_of(rows, CONTEXT + 1)
    with torch.inference_mode():
        if is_ours:
            cache = new_cache(model, CONTEXT + 1 + WRITTEN, None, rows)
            model(tokens[:, :-1], cache=cache, output=LastLogits())
        else:
            past = model(tokens[:, :-1], use_cache=True, logits_to_keep=1).past_key_values
    if is_ours:

        @torch.inference_mode()
        def case() -> Tensor:
            cache.length = CONTEXT
            return torch.cat(decode(model, tokens[:, -1:], cache, WRITTEN), 1)

    else:

        def case() -> Tensor:
            if (more := past.get_seq_length() - CONTEXT) > 0:
                past.crop(-more)
            limits = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, "do_sample": False}
            asked = {"attention_mask": torch.ones_like(tokens), "past_key_values": past}
            return model.generate(tokens, **asked, **limits, pad_token_id=0)[:, -WRITTEN:]

    return case


def perplexity(model: Any, is_ours: bool, windows: int) -> Case:
    """The sum of the losses of a text in windows, one at a time, which overlap by half; those of
    tokens that a window before has scored are left out.
    """
    text = tokens_of(1, STRIDE * (windows + 1) + 1)

    @torch.inference_mode()
    def case() -> float:
        total = 0.0
        for first in range(0, STRIDE * windows, STRIDE):
            row = text[:, first : first + 2 * STRIDE + 1]
            labels = row[:, 1:].clone()
            if first:
                labels[:, :STRIDE] = IGNORE
            if is_ours:
                total += float(model(row[:, :-1], output=TokenNll(labels)).sum())
            else:
                logits = model(row[:, :-1]).logits.float()
                total += float(F.cross_entropy(logits[0], labels[0], reduction="sum"))
        return total

    return case


def lora_step(model: Any, is_ours: bool, rows: int, length: int) -> Case:
    """Forward, backward, clipping and fused AdamW of low-rank matrices on all four of attention."""
    tokens = tokens_of(rows, length + 1)
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    if is_ours:
        Lora(rank=RANK, targets=TARGETS).insert(model, seed=0)
    else:
        from peft import LoraConfig, inject_adapter_in_model

        names = [f"{name}_proj" for name in TARGETS]
        inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=16, target_modules=names), model)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)

    def case() -> float:
        if is_ours:
            loss = model(inputs, output=TotalLoss(labels, None, loss_sum)) / labels.numel()
        else:
            loss = model(inputs, labels=inputs).loss  # it shifts them itself
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return case


CASES: dict[str, Callable[[Any, bool], Case]] = {
    "prefill of 2,048 tokens": lambda model, ours: prefill(model, ours, 2048),
    "prefill of 8,192 tokens": lambda model, ours: prefill(model, ours, 8192),
    "decoding, batch 1": lambda model, ours: decoding(model, ours, 1),
    "decoding, batch 8": lambda model, ours: decoding(model, ours, 8),
    "perplexity of 4,096 tokens": lambda model, ours: perplexity(model, ours, 8),
    "LoRA step of 2 x 512": lambda model, ours: lora_step(model, ours, 2, 512),
}


def compare(name: str, ours: Any, theirs: Any) -> dict[str, Any]:
    """Seconds of both in turn, five rounds after one call each, and the ratio of each round."""
    cases = {"ours": CASES[name](ours, True), "transformers": CASES[name](theirs, False)}
    agree(name, *(case() for case in cases.values()))
    times = round_robin(cases, DEVICE, seconds=0)
    own, other = times["ours"], times["transformers"]  # milliseconds
    quartiles = statistics.quantiles([a / b for a, b in zip(own, other, strict=True)], n=4)
    return {
        "seconds": round(statistics.median(own) / 1e3, 4),
        "seconds_transformers": round(statistics.median(other) / 1e3, 4),
        "ratio": round(quartiles[1], 4),
        "ratio_quartiles": [round(quartiles[0], 4), round(quartiles[2], 4)],
        "rounds": len(own),
    }


def agree(name: str, ours: Any, theirs: Any) -> None:
    """Refuse to time two that compute different things."""
    if name.startswith("LoRA"):  # which transformers shifts by a token
        return
    a, b = (torch.as_tensor(x).double().cpu() for x in (ours, theirs))
    if not torch.allclose(a.flatten(), b.flatten(), rtol=1e-2, atol=1e-2):
        apart = float((a.flatten() - b.flatten()).abs().max())
        raise ConfigError(f"{name}: transformers computes something else, by {apart}.")


def memory(checkpoint: str, name: str) -> dict[str, Any]:
    """Peak megabytes of both, each in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.llama", checkpoint, "--memory", name]
    found = [
        json.loads(subprocess.run([*words, whose], check=True, capture_output=True).stdout)
        for whose in ("ours", "transformers")
    ]
    return {
        "megabytes": found[0],
        "megabytes_transformers": found[1],
        "memory_ratio": round(found[0] / found[1], 4),
    }


def peak_memory(folder: Path, name: str, whose: str) -> int:
    """Megabytes of a process that does one case twice."""
    is_ours = whose == "ours"
    case = CASES[name](load_ours(folder) if is_ours else load_theirs(folder), is_ours)
    for _ in range(2):
        case()
    if DEVICE.type == "cuda":
        return torch.cuda.max_memory_allocated() >> 20
    # What getrusage says is at first the parent's.
    told = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(told.split("VmHWM:")[1].split()[0]) >> 10


if __name__ == "__main__":
    sys.exit(main())
