"""LoRA experts of one generalist, trained side by side: one pass of its frozen weights serves the batches of all.

The batches of the experts are laid end to end, so that attention, norms and the generalist's projections run once.
Every expert adds its low-rank products to its rows alone.  Experts that read the same batch share the target's outputs.
Axes: K experts, I steps, N slots, M rows (slots that start a draft), H hidden.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from lightning import LightningModule
from torch import Tensor, nn

from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.train.lora import addition_of, base_of, is_adapted
from drafterforge.drafters.eagle3.train.loss import StepCounts
from drafterforge.drafters.eagle3.train.module import DistillModule, figures, optimiser
from drafterforge.drafters.eagle3.train.ttt import Layout, PackedBatch, join_batches, join_layouts, lay_out, unroll
from drafterforge.kernels.low_rank import add_low_rank

BETWEEN = ":"  # an expert's name and a key of its figures, in logs of several experts


class ExpertRows:
    """Which experts the rows of a pass belong to."""

    def __init__(self) -> None:
        self.experts: list[int] = []  # in the order of their rows
        self.counts: dict[int, list[int]] = {}  # rows of each, by the number of all rows

    def assign(self, experts: Sequence[int], *counts: list[int]) -> None:
        """Give the next rows to these experts.  counts: of each expert; of slots, and of rows."""
        self.experts, self.counts = list(experts), {sum(part): part for part in counts}


class ExpertLinear(nn.Module):
    """A frozen projection with the low-rank additions of several experts, each to its rows."""

    def __init__(self, layers: Sequence[nn.Module], rows: ExpertRows) -> None:
        """layers: the projection in each expert."""
        super().__init__()
        self.base, self.layers, self.rows = base_of(layers[0]), list(layers), rows  # a list: no submodules

    @property
    def weight(self) -> Tensor:
        """The frozen weight."""
        return self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        counts = self.rows.counts[x.shape[0]]
        additions = [addition_of(self.layers[expert]) for expert in self.rows.experts]
        out = self.base(x)
        ranks = {addition.down.shape[0] if addition else 0 for addition in additions}
        if len(set(counts)) == 1 and len(ranks) == 1 and ranks != {0}:
            down = torch.stack([addition.down for addition in additions])
            up = torch.stack([addition.up.T for addition in additions])
            shape = (len(counts), counts[0])
            return add_low_rank(out.unflatten(0, shape), x.unflatten(0, shape), down, up).flatten(0, 1)
        parts = [
            part if addition is None else part + (rows @ addition.down.T) @ addition.up.T
            for part, rows, addition in zip(out.split(counts), x.split(counts), additions, strict=True)
        ]
        return torch.cat(parts)


def stack_experts(drafters: Sequence[Eagle3Drafter], rows: ExpertRows) -> Eagle3Drafter:
    """A view of all drafters: the first one's frozen weights, with the additions of all."""
    first = drafters[0]
    stack = copy.deepcopy(first, {id(tensor): tensor for tensor in (*first.parameters(), *first.buffers())})
    adapted = {name for drafter in drafters for name, module in drafter.named_modules() if is_adapted(module)}
    for name in adapted:
        parent, _, leaf = name.rpartition(".")
        layers = [drafter.get_submodule(name) for drafter in drafters]
        setattr(stack.get_submodule(parent), leaf, ExpertLinear(layers, rows))
    return stack


def share_frozen(drafters: Sequence[Eagle3Drafter]) -> None:
    """Let all drafters use the frozen tensors of the first one, which theirs equal; changes the others."""
    shared: dict[str, Tensor] = {}
    for drafter in drafters:
        for path, module in drafter.named_modules():
            for store in (module._parameters, module._buffers):
                for name, tensor in store.items():
                    if tensor is not None and not tensor.requires_grad:
                        store[name] = shared.setdefault(f"{path}.{name}".replace(".base_layer", ""), tensor)


class ExpertsModule(LightningModule):
    """Trains several `DistillModule`s of LoRA experts as if each were trained alone."""

    def __init__(
        self, experts: Sequence[DistillModule], names: Sequence[str], train_streams: list[int], val_streams: list[int]
    ) -> None:
        """train_streams, val_streams: for each expert, which batch of a step it reads."""
        super().__init__()
        self.experts, self.names = nn.ModuleList(experts), list(names)
        self.train_streams, self.val_streams = train_streams, val_streams
        self.active = list(range(len(experts)))  # experts that are still trained
        self.rows, drafters = ExpertRows(), [expert.drafter for expert in experts]
        share_frozen(drafters)
        self.__dict__["stack"] = stack_experts(drafters, self.rows)  # no submodule: its weights are those of `experts`

    def is_trained(self, expert: int) -> bool:
        """Whether an expert is still trained."""
        return expert in self.active

    def forward(
        self, batches: Sequence[PackedBatch | None], streams: list[int]
    ) -> Iterator[tuple[int, Tensor, StepCounts]]:
        """For each batch, experts that read it: yields their numbers, the sum of their losses, and the counts of each.

        batches: of each stream; None: it has ended.
        """
        first = self.experts[self.active[0]]
        depth, readers = first.depth, {}
        for expert in self.active:
            if batches[streams[expert]] is not None:
                readers.setdefault(streams[expert], []).append(expert)
        layouts = {stream: lay_out(batches[stream], depth) for stream in readers}
        order = [(stream, expert) for stream, experts in readers.items() for expert in experts]
        slots = [batches[stream].tokens.numel() for stream, _ in order]
        starts = [layouts[stream].rows.numel() for stream, _ in order]
        self.rows.assign([expert for _, expert in order], slots, starts)
        batch = join_batches([batches[stream] for stream, _ in order])
        layout: Layout = join_layouts([layouts[stream] for stream, _ in order], slots)
        outputs = unroll(self.stack, batch, layout, depth, recompute=first.recompute)
        parts = dict(zip([expert for _, expert in order], outputs.split(starts, dim=1), strict=True))
        for stream, experts in readers.items():
            modules = [self.experts[expert] for expert in experts]
            hidden = torch.cat([parts[expert] for expert in experts])
            yield experts, *modules[0].losses_of(modules, hidden, batches[stream], layouts[stream])

    def transfer_batch_to_device(
        self, batches: Sequence[PackedBatch | None], device: torch.device, dataloader_idx: int
    ) -> list[PackedBatch | None]:
        return [batch and batch.to(device) for batch in batches]

    def training_step(self, batches: Sequence[PackedBatch | None], index: int) -> Tensor:
        losses = []
        for experts, loss, counts in self(batches, self.train_streams):
            losses.append(loss)
            for expert, expert_counts in zip(experts, counts, strict=True):
                module = self.experts[expert]
                module.losses.append(expert_counts.mean_loss(module.config.step_decay))
                module.add(expert_counts)
        if (index + 1) % self.trainer.accumulate_grad_batches == 0:
            groups = self.trainer.optimizers[0].param_groups
            for expert in self.active:
                loss, counts = self.experts[expert].pop_loss(), self.pop_counts(expert)
                self.log_figures(expert, figures("train", loss, counts) | {"train/lr": groups[expert]["lr"]})
        return torch.stack(losses).sum()

    def on_validation_epoch_start(self) -> None:
        for module in self.experts:
            module.counts = None

    def validation_step(self, batches: Sequence[PackedBatch | None], index: int) -> None:
        for experts, _, counts in self(batches, self.val_streams):
            for expert, expert_counts in zip(experts, counts, strict=True):
                self.experts[expert].add(expert_counts)

    def on_validation_epoch_end(self) -> None:
        """Log every expert's ratios over its complete validation set."""
        for expert in self.active:
            counts = self.pop_counts(expert)
            loss = counts.mean_loss(self.experts[expert].config.step_decay)
            self.log_figures(expert, figures("val", loss, counts))

    def pop_counts(self, expert: int) -> StepCounts:
        """An expert's counts since the last call."""
        module = self.experts[expert]
        counts, module.counts = module.counts, None
        return counts

    def log_figures(self, expert: int, table: dict[str, Tensor]) -> None:
        """Log an expert's figures under its name."""
        self.log_dict({f"{self.names[expert]}{BETWEEN}{key}": value for key, value in table.items()})

    def configure_optimizers(self) -> dict:
        return optimiser(list(self.experts))

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradient of each expert by its norm, as a run of its own does."""
        for group in optimizer.param_groups if gradient_clip_val else ():
            nn.utils.clip_grad_norm_(group["params"], gradient_clip_val)
