"""Training data of a router: prompts of each domain, partly rephrased, their pooled features and labels.

Axes: n prompts, F features, L labels, N drafters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from drafterforge.artifacts.manifest import Manifest, canonical_json
from drafterforge.config.compose import to_dict
from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.config.progress import bar, say
from drafterforge.config.router import RouterConfig
from drafterforge.data.answering import DATE, user_turns
from drafterforge.data.chat import prompt_ids
from drafterforge.data.prompts import Prompt, load_prompts
from drafterforge.errors import ConfigError
from drafterforge.prompts.rephrase import kinds, rephrase_prompts, rephrase_share
from drafterforge.router.features import TextEncoder, prompt_features, request_text
from drafterforge.targets.load import Target
from drafterforge.training.router import soft_labels

TOKENS_PER_PASS = 2048  # padded tokens of a batch that the target reads
CLEAN = "as written"
LATER_KEYS = ("labels", "drafters", "max_new_tokens", "held_out_kinds")  # settings that older routers lack


@dataclasses.dataclass(frozen=True)
class DrafterScores:
    """MAT of a pool's drafters on prompts, which labels are made from; without it, a prompt's label is its domain."""

    drafters: list[str]
    accept_lengths: Mapping[str, Sequence[float]]  # id of a prompt as written -> MAT of each drafter
    parents: Sequence[Manifest] = ()  # of the drafters

    @property
    def digest(self) -> str:
        """Sha256 of the scores."""
        return sha256(canonical_json([self.drafters, self.accept_lengths])).hexdigest()


def router_prompts(domains: Sequence[str], config: RouterConfig, seed: int) -> dict[str, list[Prompt]]:
    """Prompts of all domains: `train` and `val` partly rephrased; test prompts as written, and once per rephrasing.

    The splits have different tasks and different wordings of rephrasings; held-out kinds are in the test only.
    """
    seen = seen_kinds(config)
    sets: dict[str, list[Prompt]] = {"train": [], "val": [], CLEAN: []} | {kind: [] for kind in kinds()}
    for splits in draw_prompts(domains, config, seed):
        for split in ("train", "val"):
            sets[split] += rephrase_share(splits[split], config.rephrased, split, seed, seen)
        sets[CLEAN] += splits["test"]
        for kind in kinds():
            sets[kind] += rephrase_prompts(splits["test"], kind, "test", seed)
    return sets


def seen_kinds(config: RouterConfig) -> list[str]:
    """Kinds of rephrasing that training prompts have."""
    if unknown := sorted({*config.held_out_kinds} - {*kinds()}):
        raise ConfigError(f"router.held_out_kinds names {unknown[0]!r}; type some of {', '.join(kinds())}")
    seen = [kind for kind in kinds() if kind not in config.held_out_kinds]
    if not seen and config.rephrased:
        raise ConfigError("router.held_out_kinds leaves no kind to train on; type router.rephrased=0, or fewer kinds")
    return seen


def draw_prompts(domains: Sequence[str], config: RouterConfig, seed: int) -> list[dict[str, list[Prompt]]]:
    """First turns of each domain's prompts, by split."""
    if len(set(domains)) < 2:
        raise ConfigError(f"a router needs at least two domains to tell apart, got {', '.join(domains) or 'none'}")
    data = DataConfig(num_train=config.num_train, num_val=config.num_val, num_test=config.num_test)
    loaded = [load_prompts(data, DomainConfig(name=name), seed) for name in domains]
    return [{split: first_turns(prompts) for split, prompts in splits.items()} for splits in loaded]


def recorded_settings(config: RouterConfig) -> dict[str, Any]:
    """The configuration as a manifest records it, with `LATER_KEYS` only where they are set."""
    plain = to_dict(RouterConfig())
    return {key: value for key, value in to_dict(config).items() if key not in LATER_KEYS or value != plain[key]}


def first_turns(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts up to the first question to the target."""
    return [dataclasses.replace(prompt, messages=tuple(user_turns(prompt.messages)[0])) for prompt in prompts]


def pooled_sets(
    target: Target, encoder: TextEncoder | None, sets: Mapping[str, Sequence[Prompt]]
) -> dict[str, tuple[list[Prompt], Tensor]]:
    """The prompts of each set that fit the target's context, and their pooled features, [n, F] float32."""
    sets_read, left_out = {}, 0
    with bar("reading prompts", sum(map(len, sets.values()))) as progress:
        for name, prompts in sets.items():
            ids = [prompt_ids(target.tokenizer, prompt.messages, date=DATE) for prompt in prompts]
            fitting = [index for index, tokens in enumerate(ids) if len(tokens) <= target.max_positions]
            left_out += len(prompts) - len(fitting)
            if not fitting:
                raise ConfigError(
                    f"all prompts ({name}) are longer than the {target.max_positions} tokens of the target"
                )
            read = [prompts[index] for index in fitting]
            if encoder is None:
                pooled = pooled_by_target(target, [ids[index] for index in fitting], progress.advance)
            else:
                pooled = torch.stack([encoder(request_text(prompt.messages)) for prompt in read])
                progress.advance(len(read))
            sets_read[name] = (read, pooled)
    if left_out:
        say(f"router: {left_out} prompts are longer than the target's {target.max_positions} tokens: left out")
    return sets_read


@torch.inference_mode()
def pooled_by_target(
    target: Target, prompts: Sequence[list[int]], advance: Callable[[int], Any] | None = None
) -> Tensor:
    """Pooled features of token ids, [n, F] float32; batches hold prompts of similar length, padded at the end."""
    waiting = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    pooled: dict[int, Tensor] = {}
    while waiting:
        longest = len(prompts[waiting[-1]])
        count = max(1, TOKENS_PER_PASS // longest)
        waiting, batch = waiting[:-count], waiting[-count:]
        tokens = torch.zeros(len(batch), longest, dtype=torch.long)
        for row, index in enumerate(batch):
            tokens[row, : len(prompts[index])] = torch.tensor(prompts[index])
        positions = torch.arange(longest, device=target.device).expand(len(batch), -1)
        _, features = target.forward(tokens.to(target.device), positions, None)
        width = target.backbone.embedding.shape[1]
        read = [prompt_features(features[row, : len(prompts[index])], width) for row, index in enumerate(batch)]
        pooled |= zip(batch, torch.stack(read).cpu(), strict=True)
        if advance is not None:
            advance(len(batch))
    return torch.stack([pooled[index] for index in range(len(prompts))]).clone()


def label_prompts(
    read: Mapping[str, tuple[Sequence[Prompt], Tensor]],
    domains: Sequence[str],
    config: RouterConfig,
    scores: DrafterScores | None,
) -> tuple[list[str], dict[str, Tensor]]:
    """Names of the labels, and the labels of each set's prompts: int64 [n]; of training prompts with scores, [n, L]."""
    if scores is None:
        labels = list(domains)
        return labels, {
            name: torch.tensor([labels.index(prompt.domain) for prompt in prompts])
            for name, (prompts, _) in read.items()
        }
    labels = {}
    for name, (prompts, _) in read.items():
        lengths = accept_lengths(prompts, scores)
        labels[name] = soft_labels(lengths, config.label_temperature) if name == "train" else lengths.argmax(dim=1)
    return list(scores.drafters), labels


def accept_lengths(prompts: Sequence[Prompt], scores: DrafterScores) -> Tensor:
    """MAT of each drafter on each prompt, [n, N]; a rephrased prompt has the figures of the prompt as written."""
    ids = [prompt.id.partition("/")[0] for prompt in prompts]
    if unmeasured := [name for name in ids if name not in scores.accept_lengths]:
        raise ConfigError(f"{len(unmeasured)} prompts were not measured, such as {unmeasured[0]}; measure them first")
    return torch.tensor([list(scores.accept_lengths[name]) for name in ids], dtype=torch.float32)
