"""Times a training step, forward and backward of all TTT steps, beside that of `speculators` if it is installed.

    scripts/bench_train_env && .venv-speculators/bin/python scripts/bench_train.py

Weights and data are synthetic, of the embedded target's shape.  Both programs get the same ones in fp32, and take turns
in one run.  They differ in two ways, so three of our variants are timed: speculators freezes the draft head, which we
train by default, and it keeps the activations of every step, which we recompute by default.
Losses are compared where their definitions agree: speculators' loss per position, averaged over the slots whose root
and predicted token belong to the answer, against our cross-entropy minus the teacher's entropy.  The synthetic target
never prefers a token outside the draft vocabulary, because the two programs treat that case differently.

Figures, peak_memory_gb on a GPU only, the last four beside speculators only:
    answer_tokens_per_s                answer tokens trained a second
    answer_tokens_per_s_one_ttt_step   the same with one TTT step
    peak_memory_gb                     memory of the GPU at its peak, the models of both programs included
    ratio_to_speculators               speed over that of speculators, with the draft head frozen in both
    ratio_to_speculators_head_trained  the same, with our draft head trained
    loss_max_abs_diff                  largest difference of the losses of a TTT step
    joint_max_abs_diff                 largest difference of the slots predicted right at a TTT step and all before
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.eagle3.init import scratch_init
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.drafters.eagle3.train.loss import StepCounts
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.drafters.eagle3.train.ttt import PackedBatch, lay_out
from drafterforge.targets.device import choose_device, describe_device

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

SPECULATORS = "speculators"
INSTALL = "scripts/bench_train_env && .venv-speculators/bin/python scripts/bench_train.py"
STAY, JITTER = 0.8, 0.05  # probability that a position keeps the last state, and the noise added to it


@dataclass(frozen=True)
class Scale:
    """Sizes of a run."""

    spec: DrafterSpec
    ttt_steps: int
    tokens: int  # in the pack
    prompt: tuple[int, int]  # shortest and longest
    answer: tuple[int, int]
    repeats: int


def scale(quick: bool) -> Scale:
    """The embedded target's dimensions and typical sequences, or a toy."""
    rope = {"rope_type": "default", "rope_theta": 100000.0}
    if quick:
        spec = DrafterSpec(64, 64, 128, 4, 2, 16, 512, 256, 1e-5, rope, 512, (1, 2, 3))
        return Scale(spec, ttt_steps=3, tokens=256, prompt=(16, 24), answer=(18, 26), repeats=2)
    spec = DrafterSpec(576, 576, 1536, 9, 3, 64, 49152, 16384, 1e-5, rope, 8192, (1, 14, 26))
    return Scale(spec, ttt_steps=7, tokens=2048, prompt=(80, 120), answer=(90, 130), repeats=3)


def synthetic_batch(size: Scale, head: Tensor, token_ids: Tensor, generator: torch.Generator) -> PackedBatch:
    """Sequences whose states are often close to the one before.

    A drafter that copies its feature is then right about as often as a trained one, so accuracies compare.
    head: [V, H].  token_ids: draft vocabulary, [W].
    """
    lengths, prompts = [], []

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    while True:
        prompt, answer = draw(*size.prompt), draw(*size.answer)
        if sum(lengths) + prompt + answer > size.tokens:
            break
        lengths.append(prompt + answer)
        prompts.append(prompt)
    total, width = sum(lengths), size.spec.hidden_size
    states = torch.randn(total, width, generator=generator)
    jumps = torch.rand(total, generator=generator) > STAY
    origin = torch.where(jumps, torch.arange(total), 0).cummax(0).values
    states = states[origin] + JITTER * torch.randn(total, width, generator=generator)
    states = F.rms_norm(states, (width,), eps=size.spec.rms_norm_eps)
    low_and_mid = torch.randn(total, 2 * width, generator=generator)
    return PackedBatch(
        tokens=torch.randint(0, size.spec.vocab_size, (total,), generator=generator),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        loss_mask=torch.cat([torch.arange(n) >= prompt for n, prompt in zip(lengths, prompts, strict=True)]),
        lengths=lengths,
        features=torch.cat((low_and_mid, states), dim=-1),
        states=states,
        argmax=token_ids[(states @ head[token_ids].T).argmax(dim=-1)],
    )


@torch.no_grad()
def synthetic_module(size: Scale, config: TrainerConfig, generator: torch.Generator) -> tuple[DistillModule, Tensor]:
    """A drafter that roughly copies its high feature, and the target's head [V, H]."""
    spec = size.spec
    width = spec.hidden_size
    head = torch.randn(spec.vocab_size, width, generator=generator) * (2.5 * width**-0.5)
    drafter = Eagle3Drafter(spec, torch.randn(spec.vocab_size, width, generator=generator) * 0.1)
    scratch_init(drafter, std=0.2 * width**-0.5)
    drafter.set_vocabulary(torch.randperm(spec.vocab_size, generator=generator)[: spec.draft_vocab_size].sort().values)
    drafter.fc.weight[:, -width:] += torch.eye(width)
    drafter.lm_head.weight.copy_(head[drafter.token_ids])
    return DistillModule(drafter, head, config).train(), head


@dataclass(frozen=True)
class Agreement:
    """Figures that both programs compute."""

    loss: list[float]  # mean KL of each step
    joint: list[int]  # slots right at this and all earlier steps


class Ours:
    """drafterforge's step."""

    def __init__(self, module: DistillModule, batch: PackedBatch, *, train_head: bool, **changes: Any) -> None:
        self.module, self.batch, self.train_head = module, batch, train_head
        self.config = replace(module.config, **changes)
        self.ttt_steps, self.recompute = self.config.ttt_steps, self.config.checkpoint_steps

    def step(self) -> StepCounts:
        self.module.config = self.config
        self.module.drafter.lm_head.weight.requires_grad_(self.train_head)
        self.module.zero_grad(set_to_none=True)
        loss, counts = self.module(self.batch)
        loss.backward()
        return counts

    def agreement(self) -> Agreement:
        """Cross-entropy minus the teacher's entropy, per step."""
        counts = self.step()
        layout = lay_out(self.batch, self.ttt_steps)
        log_p = (self.batch.states[layout.teacher_positions] @ self.module.head.T).log_softmax(dim=-1)
        entropy = -(log_p.exp() * log_p).sum(dim=-1)  # [P]
        mean = torch.stack([entropy[slots >= 0].mean() for slots in layout.slots])
        return Agreement((counts.loss / counts.weighted - mean).tolist(), counts.joint.tolist())


class Theirs:
    """The step of speculators' Eagle3DraftModel with the same weights, on the same batch."""

    train_head = recompute = False  # it freezes its head and keeps the activations of every step

    def __init__(self, module: DistillModule, batch: PackedBatch) -> None:
        from speculators.losses import resolve_loss_config
        from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
        from transformers import LlamaConfig

        drafter, self.ttt_steps, self.batch = module.drafter, module.config.ttt_steps, batch
        spec = drafter.spec
        layer = LlamaConfig(
            hidden_size=spec.hidden_size,
            intermediate_size=spec.intermediate_size,
            num_hidden_layers=1,
            num_attention_heads=spec.num_heads,
            num_key_value_heads=spec.num_key_heads,
            head_dim=spec.head_dim,
            vocab_size=spec.vocab_size,
            max_position_embeddings=spec.max_positions,
            rms_norm_eps=spec.rms_norm_eps,
            rope_parameters=dict(spec.rope_parameters),
            attn_implementation="sdpa",  # the faster of the two that train on a CPU
        )
        self.model = Eagle3DraftModel(
            Eagle3SpeculatorConfig(
                transformer_layer_config=layer,
                draft_vocab_size=spec.draft_vocab_size,
                norm_before_residual=False,
                eagle_aux_hidden_state_layer_ids=list(spec.tap_layers),
            )
        ).to(module.head.device)
        weights = {name.replace("midlayer.", "layers.0."): value for name, value in drafter.state_dict().items()}
        weights |= {
            "embed_tokens.weight": drafter.embedding,
            "verifier_lm_head.weight": module.head,
            "verifier_norm.weight": torch.ones(spec.hidden_size),  # our states are normed already
        }
        self.model.load_state_dict(weights, strict=True)
        self.model.train()
        self.loss = resolve_loss_config("kl_div", "eager")
        self.decay = module.config.step_decay
        # A sequence of n tokens has n - 1 slots; slot_index[j] counts the slots before token j of the pack.
        has_slot = torch.cat([torch.arange(n) < n - 1 for n in batch.lengths]).to(module.head.device)
        self.slots = has_slot.nonzero()[:, 0]
        self.slot_index = has_slot.cumsum(0) - 1
        self.documents = torch.cat([torch.full((n - 1,), i) for i, n in enumerate(batch.lengths)]).to(self.slots)

    def step(self, loss: dict | None = None) -> dict[str, Tensor]:
        """Forward and backward; a slot's position, token and teacher are those of the token after it."""
        batch, following = self.batch, self.slots + 1
        # the last token of an answer has no successor to learn
        mask = batch.loss_mask.to(following.device)[following] & (self.slots + 2 < batch.tokens.numel())
        mask[:-1] &= self.documents[1:] == self.documents[:-1]
        self.model.zero_grad(set_to_none=True)
        _, total, metrics = self.model(
            hidden_states=batch.features[None, self.slots],
            input_ids=batch.tokens[None, following],
            document_ids=self.documents[None],
            loss_mask=mask[None],
            position_ids=batch.positions[None, following],
            verifier_last_hidden_states=batch.states[None, following],
            ttt_steps=self.ttt_steps,
            ttt_step_loss_decay=self.decay,
            loss_config=loss or self.loss,
        )
        total.backward()
        return metrics

    def agreement(self) -> Agreement:
        """Its loss per position, averaged over our slots, and its joint accuracy counts."""
        ((name, (kl, weight)),) = self.loss.items()
        by_position: list[Tensor] = []

        def recorded(logits: Tensor, targets: Tensor) -> Tensor:
            by_position.append(kl(logits, targets))
            return by_position[-1]

        metrics = self.step({name: (recorded, weight)})
        layout = lay_out(self.batch, self.ttt_steps)
        losses = [
            values[0, self.slot_index[layout.rows[slots[slots >= 0]]]].mean().item()
            for values, slots in zip(by_position, layout.slots, strict=True)
        ]
        return Agreement(losses, [int(metrics[f"full_acc_{i}_sum"]) for i in range(self.ttt_steps)])


def measure(runners: dict[str, Any], repeats: int, device: torch.device) -> dict[str, float]:
    """Median seconds of a step; runners take turns, and each has run once before."""

    def seconds(step: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    times: dict[str, list[float]] = {name: [] for name in runners}
    names = list(runners)
    for repeat in range(repeats):
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            times[name].append(seconds(runners[name].step))
    return {name: statistics.median(values) for name, values in times.items()}


def run(quick: bool) -> dict[str, Any]:
    """Measure and return the report."""
    size, device = scale(quick), choose_device("auto")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    module, head = synthetic_module(size, TrainerConfig(ttt_steps=size.ttt_steps), generator)
    batch = synthetic_batch(size, head, module.drafter.token_ids, generator).to(device)
    module.to(device)
    runners: dict[str, Any] = {
        "drafterforge": Ours(module, batch, train_head=True),
        "drafterforge, head frozen": Ours(module, batch, train_head=False),
        "drafterforge, head frozen, no recomputing": Ours(module, batch, train_head=False, checkpoint_steps=False),
        "drafterforge, one TTT step": Ours(module, batch, train_head=True, ttt_steps=1),
    }
    if find_spec(SPECULATORS):
        runners[SPECULATORS] = Theirs(module, batch)
    agreements = {name: runner.agreement() for name, runner in runners.items()}  # also a warm-up
    times = measure(runners, size.repeats, device)
    answer_tokens = int(batch.loss_mask.sum())
    rows = [
        {
            "table": "time",
            "method": name,
            "ttt_steps": runners[name].ttt_steps,
            "head_trained": runners[name].train_head,
            "recompute": runners[name].recompute,
            "num_tokens": batch.tokens.numel(),
            "num_answer_tokens": answer_tokens,
            "step_s": times[name],
            "answer_tokens_per_s": answer_tokens / times[name],
        }
        for name in runners
    ]
    speed = {row["method"]: row["answer_tokens_per_s"] for row in rows}
    figures = {
        "answer_tokens_per_s": speed["drafterforge"],
        "answer_tokens_per_s_one_ttt_step": speed["drafterforge, one TTT step"],
    }
    if device.type == "cuda":
        figures["peak_memory_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
    if SPECULATORS in runners:
        agreement = compare(agreements["drafterforge"], agreements[SPECULATORS])
        figures |= {
            "ratio_to_speculators": speed["drafterforge, head frozen"] / speed[SPECULATORS],
            "ratio_to_speculators_head_trained": speed["drafterforge"] / speed[SPECULATORS],
            "loss_max_abs_diff": max(abs(row["loss"] - row["loss_speculators"]) for row in agreement),
            "joint_max_abs_diff": max(abs(row["joint"] - row["joint_speculators"]) for row in agreement),
        }
        rows += agreement
    return {
        "bench": "train",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": describe_device(device),
        "dtype": "float32",
        "figures": figures,
        "rows": rows,
    }


def compare(ours: Agreement, theirs: Agreement) -> list[dict[str, Any]]:
    """One row per TTT step."""
    return [
        {
            "table": "agreement",
            "ttt_step": i,
            "loss": ours.loss[i],
            "loss_speculators": theirs.loss[i],
            "joint": ours.joint[i],
            "joint_speculators": theirs.joint[i],
        }
        for i in range(len(ours.loss))
    ]


def print_report(report: dict[str, Any], console: Console) -> None:
    """Print the report as tables."""
    timed = [row for row in report["rows"] if row["table"] == "time"]
    sizes = f"{timed[0]['num_tokens']} tokens, {timed[0]['num_answer_tokens']} of them in answers"
    console.print(f"device: {report['device']}, {report['dtype']}; one pack of {sizes}", soft_wrap=True)
    table = Table(title="one training step, forward and backward", title_justify="left")
    for heading in ("", "TTT steps", "head", "recompute", "seconds", "answer tokens/s", "over speculators"):
        table.add_column(heading, justify="left" if heading in ("", "head", "recompute") else "right")
    peer = next((row for row in timed if row["method"] == SPECULATORS), None)
    for row in timed:
        comparable = peer is not None and row["ttt_steps"] == peer["ttt_steps"]
        table.add_row(
            row["method"].split(",")[0],
            str(row["ttt_steps"]),
            "trained" if row["head_trained"] else "frozen",
            "yes" if row["recompute"] else "no",
            f"{row['step_s']:.3f}",
            f"{row['answer_tokens_per_s']:.1f}",
            f"{row['answer_tokens_per_s'] / peer['answer_tokens_per_s']:.2f}x" if comparable else "",
        )
    console.print(table)
    if peer is None:
        console.print(f"speculators is not installed here; to compare with it: {INSTALL}", soft_wrap=True)
        return
    table = Table(title="agreement with speculators", title_justify="left")
    for heading in ("TTT step", "KL", "speculators", "difference", "right so far", "speculators"):
        table.add_column(heading, justify="right")
    for row in report["rows"]:
        if row["table"] == "agreement":
            table.add_row(
                str(row["ttt_step"]),
                f"{row['loss']:.5f}",
                f"{row['loss_speculators']:.5f}",
                f"{abs(row['loss'] - row['loss_speculators']):.1e}",
                str(row["joint"]),
                str(row["joint_speculators"]),
            )
    console.print(table)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    parser.add_argument("--quick", action="store_true", help="a toy in seconds, to test the script")
    options = parser.parse_args(arguments)
    report = run(options.quick)
    print_report(report, Console())
    if options.json:
        save_json_atomic(options.json, report)


if __name__ == "__main__":
    main()
