"""The only LightningModule: a decoder, its loss and its optimizer."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from lightning import LightningModule
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from tape_exp.data.batch import IGNORE, Batch, loss_weights
from tape_exp.machine import processes
from tape_exp.machine.processes import sum_over_processes
from tape_exp.machine.seeding import RowSampler, seed_for
from tape_exp.models.decoder import Decoder
from tape_exp.models.head import TotalLoss
from tape_exp.models.peft import trained
from tape_exp.results.evaluation import Evaluation
from tape_exp.runs.checkpoint_info import fingerprint, title
from tape_exp.runs.loggers import log_to_all
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks.base import Task
from tape_exp.tasks.diagnostics.positional_state import state_metrics, updates_positions
from tape_exp.training.callbacks import track
from tape_exp.training.not_finite import NotFiniteError, advice, first_seen
from tape_exp.training.on_device import OnDevice
from tape_exp.training.optimizer import make_optimizer, number_by_place, rate_factor

GAUGED_ROWS = 4  # of a validation batch, whose position state is looked at


class LanguageModule(LightningModule):
    """Next-token training of a :class:`Decoder` on a :class:`Task`.

    The loss is the mean over all labelled tokens of the global batch: each micro-batch adds its sum
    divided by the number of the whole batch, so that neither accumulation nor the number of devices
    changes it.

    Args:
        cfg: of the run; positions that are sampled for row k are a function of its seed and k.
        config_hash: written into checkpoints; one of another config is refused.
        base: a checkpoint with the decoder's frozen weights; those of the run then hold only the
            trained ones.
    """

    def __init__(
        self,
        decoder: Decoder,
        task: Task,
        cfg: DictConfig,
        config_hash: str = "",
        base: Path | None = None,
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.task = task
        self.cfg = cfg
        self.config_hash = config_hash
        self.base = None if base is None else title(base)
        self.base_weights = None if base is None else fingerprint(base)
        self.strict_loading = base is None
        self._loss_sum: Callable[..., Tensor] = loss_sum
        on_gpu = cfg.trainer.accelerator != "cpu" and torch.cuda.is_available()
        by_default = on_gpu and cfg.trainer.strategy != "fsdp"
        self.compiled = by_default if cfg.trainer.compile is None else bool(cfg.trainer.compile)
        if self.compiled:  # else each step of the loss reads and writes all logits
            decoder.compile()
            self._loss_sum = torch.compile(loss_sum)
        self._check_positions()
        self._has_dropout = any(
            isinstance(part, nn.Dropout) and part.p > 0 for part in decoder.modules()
        )
        self.evaluation = Evaluation({})
        self.validation: dict[str, float] = {}
        self._loss = torch.zeros(())  # of the step, as far as it is
        self._grad_norm = torch.zeros(())
        self._loss_tokens = torch.zeros(())
        self._counted_step = -1  # the step whose tokens that is, in all processes
        self._batch: dict[str, Any] = {}  # the micro-batch whose loss is the latest
        self._steps_here = 0  # of this process
        self._sums: dict[str, Tensor] = {}  # of a validation
        self._state: dict[str, float] = {}  # of positions, in its first batch

    def _check_positions(self) -> None:
        """Refuse a task that draws positions for an encoding that draws its own, or has too few."""
        span = self.task.skip_to
        if span is None:
            return
        if self.decoder.random is not None:
            raise ConfigError(
                f"task.skip_to={span} draws positions, as model={self.cfg.model.name} does itself; "
                "leave one of them out."
            )
        for position in self.decoder.encodings():
            position.require(span)

    def configure_model(self) -> None:
        """Under ``trainer.strategy=fsdp``, shard every block and the rest over devices (FSDP2)."""
        mesh = self.device_mesh
        if mesh is None or isinstance(self.decoder, FSDPModule):
            return
        for part in (*self.decoder.layers, self.decoder):
            fully_shard(part, mesh=mesh["data_parallel"])

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return this micro-batch's part of the mean loss, times what Lightning and DDP divide
        by.
        """
        first = batch["first"]
        sampler = RowSampler(self.cfg.seed, "positions", first=first)
        if self._has_dropout:  # masks that depend only on the rows, like all that is random here
            torch.manual_seed(seed_for(self.cfg.seed, "dropout", first))
        if self._counted_step != self.global_step:  # it is the same for all micro-batches of a step
            self._loss_tokens = sum_over_processes(batch["loss_tokens"].clone())
            self._counted_step = self.global_step
        self._batch = batch
        total = self._total_loss(self.decoder, batch, sampler)
        loss = total / self._loss_tokens
        self._loss = self._loss.to(loss.device) + loss.detach()
        return loss * (self.trainer.accumulate_grad_batches * self.trainer.world_size)

    def _total_loss(
        self, decoder: Callable[..., Tensor], batch: dict[str, Any], sampler: RowSampler
    ) -> Tensor:
        """Add up the losses of a micro-batch."""
        return decoder(
            batch["inputs"],
            positions_BT=batch.get("positions"),
            sampler=sampler,
            output=TotalLoss(batch["labels"], batch.get("weights"), self._loss_sum),
        )

    def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
        """Clip by norm, and keep the norm for the report.

        Raises:
            NotFiniteError: the norm is NaN or infinite, and so would the weights be. A GPU, which
                is waited for each time, is asked for it only in the first steps.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.parameters(), self.task.optim.clip)
        self._grad_norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self._steps_here += 1
        if self._asks_for_norm() and not bool(self._grad_norm.isfinite()):
            value = float(sum_over_processes(self._loss))
            self._refuse(value, float(self._grad_norm), self.global_step + 1, self._first_seen())

    def _asks_for_norm(self) -> bool:
        """Say whether this step waits for its gradient norm."""
        on_cpu = self._grad_norm.device.type == "cpu"
        return on_cpu or self._steps_here < self.cfg.trainer.log_every

    def _first_seen(self) -> str:
        """Find where the micro-batch first has a number that is not finite, before weights do."""
        if self.device_mesh is not None:  # no process has whole weights
            return ""
        sampler = RowSampler(self.cfg.seed, "positions", first=self._batch["first"])

        def forward() -> Tensor:
            with self.trainer.precision_plugin.forward_context():
                return self._total_loss(self.decoder.forward, self._batch, sampler)

        return first_seen(self.decoder, forward)

    def _refuse(self, loss: float, norm: float, step: int, place: str = "") -> NoReturn:
        """Raise :class:`NotFiniteError`, with the place where that was first seen."""
        first = f", first seen {place}" if place else ""
        raise NotFiniteError(
            f"the loss is {loss} and the gradient norm {norm} at step {step}{first}. "
            f"{advice(self.task.optim)}"
        )

    def report_step(self, gauges: dict[str, float]) -> None:
        """Report an optimizer step every ``trainer.log_every``, and its ``gauges`` of throughput.

        Raises:
            NotFiniteError: the loss or the gradient's norm is NaN or infinite.
        """
        loss = self._loss
        self._loss = torch.zeros_like(self._loss)
        step = self.global_step
        optim = self.task.optim
        if step % self.cfg.trainer.log_every and step != optim.max_steps:
            return
        value = float(sum_over_processes(loss))
        norm = float(self._grad_norm)
        if not (math.isfinite(value) and math.isfinite(norm)):
            self._refuse(value, norm, step)
        highest = float(self.trainer.optimizers[0].param_groups[0]["initial_lr"])
        lr = highest * rate_factor(step - 1, optim)  # the schedule is at the next step already
        self.send({"train/loss": value, "train/lr": lr, "train/grad_norm": norm} | gauges)

    def require_finite(self) -> None:
        """Raise :class:`NotFiniteError` where a trained weight or a moment of AdamW is NaN
        or infinite.
        """
        (optimizer,) = self.trainer.optimizers
        moments = [x for state in optimizer.state.values() for x in state.values()]
        weights = [parameter for _, parameter in trained(self)]
        tensors = [*weights, *filter(torch.is_tensor, moments)]
        own = [x.to_local() if isinstance(x, DTensor) else x for x in tensors]
        lost = torch.stack([(~x.detach().isfinite()).sum().to(self.device) for x in own]).sum()
        if sum_over_processes(lost):
            raise NotFiniteError(
                f"weights or moments are not finite after step {self.global_step}, and are not "
                f"saved. {advice(self.task.optim)}"
            )

    def send(self, metrics: dict[str, float]) -> None:
        """Send metrics to every logger at this step, and to the progress display."""
        step = self.global_step
        log_to_all(self.trainer.loggers, lambda logger: logger.log_metrics(metrics, step))
        self.trainer.progress_bar_metrics.update(metrics)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add up loss, tokens, rows and the task's own sums; look at the position state of TAPE."""
        if batch_idx == 0:
            self._sums = {}
            self._state = self._state_gauges(batch)
        rank, world = processes.rank_and_world()
        number = batch_idx * world + rank  # among the batches of all processes
        sampler = RowSampler(0, "validation positions", number)
        places = batch.get("positions")
        logits = self.decoder(batch["inputs"], positions_BT=places, sampler=sampler)
        sums = {
            "loss": self._loss_sum(logits, batch["labels"], batch.get("weights")),
            "tokens": loss_weights(batch).sum(),
            "rows": loss_weights(batch).any(-1).sum(),
            **self.task.validation_metrics(logits, batch),
        }
        for key, value in sums.items():
            self._sums[key] = self._sums.get(key, 0) + value.double()

    def _state_gauges(self, batch: Batch) -> dict[str, float]:
        """Measure ``val/state/size@<layer>`` and ``turn@<layer>`` of a few rows, where layers
        update the state: a factor that grows from layer to layer is how bf16 overflows.
        """
        if not updates_positions(self.decoder):
            return {}
        tokens = batch["inputs"][:GAUGED_ROWS]
        labels = batch["labels"][:GAUGED_ROWS]
        before_padding = (labels != IGNORE).flip(-1).cumsum(-1).flip(-1) > 0
        metrics = state_metrics(self.decoder, tokens, before_padding)
        return {f"val/{name}": value for name, value in metrics.items()}

    def on_validation_epoch_end(self) -> None:
        """Report ``val/loss`` per token, the task's metrics per row, and the gauges."""
        sums = {key: float(sum_over_processes(value)) for key, value in self._sums.items()}
        loss = sums.pop("loss") / sums.pop("tokens")
        rows = sums.pop("rows")
        self.validation = {"val/loss": loss}
        for key, value in sums.items():
            self.validation[f"val/{key}"] = value / rows
        if self.task.reports_perplexity:
            self.validation["val/perplexity"] = math.exp(min(loss, 700))
        self.send(self.validation | self._state)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Run the task's evaluation once, on the device and in the precision of the trainer."""
        model = OnDevice(self.decoder, self.device)
        self.evaluation = self.task.evaluate(model, track, self.cfg.debug.evaluation_batches)

    def configure_optimizers(self) -> Any:
        """Make AdamW with the task's schedule (:mod:`tape_exp.training.optimizer`)."""
        return make_optimizer(self, self.task.optim)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Sign the checkpoint with its config; leave out frozen weights that are kept elsewhere."""
        checkpoint["config_hash"] = self.config_hash
        if self.device_mesh is None:
            (optimizer,) = self.trainer.optimizers
            (state,) = checkpoint["optimizer_states"]
            number_by_place(state, optimizer, self)
        if self.base is not None:
            checkpoint |= {"base": self.base, "base_weights": self.base_weights}
            names = {name for name, _ in trained(self)}
            weights = checkpoint["state_dict"]  # if sharded, only the first process has them
            checkpoint["state_dict"] = {name: weights[name] for name in weights if name in names}


def loss_sum(logits_BTV: Tensor, labels_BT: Tensor, weights_BT: Tensor | None = None) -> Tensor:
    """Add up -log softmax at the labels, times their weights, in fp32.

    ``torch.nn.functional.linear_cross_entropy`` would not hold all logits, but torch 2.13 adds up
    the loss of bf16 inputs in bf16: of 4,096 tokens it is 3.6 % off.
    """
    logits = logits_BTV.flatten(0, -2).float()
    labels = labels_BT.flatten()
    if weights_BT is None:
        return F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")
    losses = F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")
    return (losses * weights_BT.flatten()).sum()
