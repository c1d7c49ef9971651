"""A trained router: what it reads, its labels, its net, and the law over a pool's drafters that follows.

Axes: P prompt positions, H hidden of the target, F features, L labels, N drafters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafterforge.artifacts.json_input import read_json
from drafterforge.config.names import domain_of
from drafterforge.errors import ArtifactError, ConfigError, quote, shorten
from drafterforge.router.features import NUM_TAPS, POOLING, TextEncoder, prompt_features, request_of
from drafterforge.router.net import RouterNet

SCHEMA_VERSION = 1
KINDS = ("target", "text")  # the target's own prompt features | a text encoder's
WEIGHTS, SPEC = "router.safetensors", "router.json"
SCHEDULER = "policy.json"  # what a tree scheduler has in its place
WIDEST = 1 << 20  # of a layer
GENERALIST = "general"
AGAIN = "type `drafterforge train-policy policy=router overwrite=true`"

_TYPES = {
    "schema_version": int,
    "pooling": int,
    "kind": str,
    "labels": list,
    "width": int,
    "hidden": int,
    "target": str,
    "target_fingerprint": str,
    "encoder": str,
    "encoder_fingerprint": str,
}


class Router:
    """Prompt to probabilities over labels, which are names of drafters or domains."""

    def __init__(
        self,
        net: RouterNet,
        labels: Sequence[str],
        *,
        target: str = "",
        target_fingerprint: str = "",
        encoder: TextEncoder | None = None,
    ) -> None:
        """target, target_fingerprint: whose prompt features the net reads; encoder: whose it reads instead."""
        self.net, self.labels, self.encoder = net.eval().requires_grad_(False), check_labels(labels), encoder
        self.target, self.target_fingerprint = target, target_fingerprint
        if net.num_labels != len(self.labels):
            raise ConfigError(f"the router's net tells {net.num_labels} labels apart, but {len(self.labels)} are named")
        if encoder is not None and net.width != encoder.width:
            raise ConfigError(f"the router's net reads {net.width} features, but {encoder.source} has {encoder.width}")

    @property
    def kind(self) -> str:
        """Of its features, one of `KINDS`."""
        return "target" if self.encoder is None else "text"

    def pooled(self, prompt: Tensor | str) -> Tensor:
        """What the net reads, [F] float32, of the target's features [P, 3H] or of a text."""
        if isinstance(prompt, str) != (self.kind == "text"):
            wanted = "texts" if self.kind == "text" else "the target's prompt features"
            raise ConfigError(
                f"this router reads {wanted}, got {type(prompt).__name__}; train one with router.features=..."
            )
        if isinstance(prompt, str):
            return self.encoder(prompt)
        if prompt.dim() != 2 or not len(prompt) or prompt.shape[1] != NUM_TAPS * self.net.width:
            raise ConfigError(
                f"this router reads features [P, {NUM_TAPS * self.net.width}] of a prompt, got {list(prompt.shape)}"
            )
        return prompt_features(prompt)

    @torch.no_grad()
    def probabilities(self, prompt: Tensor | str) -> np.ndarray:
        """Calibrated probability of every label, [L], for the target's features [P, 3H] of a prompt, or its text."""
        pooled = self.pooled(prompt).to(self.net.mean.device)
        return self.net.probabilities(pooled[None])[0].double().cpu().numpy()

    def law_for(self, drafters: Sequence[str]) -> np.ndarray:
        """Share of each label's probability that goes to each drafter of a pool, [L, N]; rows sum to one.

        A label that names a drafter gives it all, or to the one that it names with retrieval in its trees; any other
        gives all to the generalist if there is one, else the same to every drafter.
        """
        given, drafters = list(drafters), list(drafters)
        for place, name in enumerate(given):
            drafters[place] = name if domain_of(name) in given else domain_of(name)
        if not drafters or not {*self.labels, GENERALIST} & set(drafters):
            raise ConfigError(
                f"the router knows {', '.join(self.labels)}, but the pool has {', '.join(given) or 'no drafter'}; "
                "name drafters that the router was trained for, or train it on this pool's"
            )
        shares = np.zeros((len(self.labels), len(drafters)))
        for row, label in enumerate(self.labels):
            heir = label if label in drafters else GENERALIST
            if heir in drafters:
                shares[row, drafters.index(heir)] = 1.0
            else:
                shares[row] = 1.0 / len(drafters)
        return shares

    def law(self, prompt: Tensor | str, drafters: Sequence[str]) -> np.ndarray:
        """Probability of each drafter of a pool for a prompt, [N]: what `Routed` takes, or a selector's prior."""
        return self.probabilities(prompt) @ self.law_for(drafters)

    def advice(self, tokens: Sequence[int], features: Tensor, drafters: Sequence[str], tokenizer: Any) -> np.ndarray:
        """As `law`, [N], for a prompt's token ids and the target's features of them [P, 3H], whichever it reads."""
        return self.law(features if self.kind == "target" else request_of(tokenizer, tokens), drafters)

    # --- files ---------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write `router.safetensors` and `router.json` into an existing folder; an encoder is named, not copied."""
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in self.net.state_dict().items()}
        save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
        spec = {
            "schema_version": SCHEMA_VERSION,
            "pooling": POOLING,
            "kind": self.kind,
            "labels": self.labels,
            "width": self.net.width,
            "hidden": self.net.hidden,
            "target": self.target,
            "target_fingerprint": self.target_fingerprint,
            "encoder": self.encoder.source if self.encoder else "",
            "encoder_fingerprint": self.encoder.fingerprint if self.encoder else "",
        }
        (folder / SPEC).write_text(json.dumps(spec, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path, target_fingerprint: str | None = None, encoder: str = "") -> Router:
        """The router in `folder`, checked against the target it is to serve.

        encoder: where the text encoder is now, if not where it was in training.
        Raises ArtifactError on files that are damaged, newer, or made for another target or encoder.
        """
        folder = Path(folder)
        spec = _read_spec(folder / SPEC)
        ours = spec["kind"] == "text" or target_fingerprint in (None, spec["target_fingerprint"])
        if not ours:
            raise ArtifactError(
                f"{folder} reads features of target {quote(spec['target'])} with fingerprint "
                f"{shorten(spec['target_fingerprint'])}, but this target has fingerprint {target_fingerprint}; {AGAIN}"
            )
        with torch.device("meta"):  # what is described is compared with what is stored before it costs memory
            net = RouterNet(spec["width"], len(spec["labels"]), spec["hidden"])
        _read_weights(folder / WEIGHTS, net)
        opened = TextEncoder.open(encoder or spec["encoder"]) if spec["kind"] == "text" else None
        if opened is not None and opened.fingerprint != spec["encoder_fingerprint"]:
            raise ArtifactError(
                f"{folder} reads the encoder {shorten(spec['encoder'])} with fingerprint "
                f"{shorten(spec['encoder_fingerprint'])}, but {opened.source} has {opened.fingerprint}; {AGAIN}"
            )
        targets = {key: spec[key] for key in ("target", "target_fingerprint")}
        return cls(net, spec["labels"], encoder=opened, **targets)


def check_labels(labels: Sequence[str]) -> list[str]:
    """The labels, if there are at least two different names."""
    labels = list(labels)
    if not all(isinstance(label, str) for label in labels) or len(labels) < 2 or len(set(labels)) != len(labels):
        raise ConfigError(f"a router needs at least two labels, each once, got {shorten(labels)}")
    return labels


def _read_spec(path: Path) -> dict:
    if not path.exists() and (path.parent / SCHEDULER).exists():
        raise ConfigError(
            f"{path.parent} is a tree scheduler and no router; type pool.scheduler={path.parent.name}, or "
            "drafterforge train-policy policy=router for a router"
        )
    try:
        spec = read_json(path)
    except ArtifactError as error:
        raise ArtifactError(f"{path.parent} is no readable router ({error}); wanted {SPEC} and {WEIGHTS}") from None
    version = spec.get("schema_version") if isinstance(spec, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ArtifactError(
            f"{path} has schema version {version}, but this drafterforge reads up to {SCHEMA_VERSION}; "
            "type `pip install --upgrade drafterforge`"
        )
    if not isinstance(spec, dict) or spec.keys() != _TYPES.keys():
        odd = ", ".join(sorted(spec.keys() ^ _TYPES.keys())) if isinstance(spec, dict) else "no JSON object"
        raise ArtifactError(f"{path} is damaged (missing or unknown keys: {shorten(odd)}); {AGAIN}")
    for key, kind in _TYPES.items():
        if type(spec[key]) is not kind:
            raise ArtifactError(f"{path} is damaged ({key} is no {kind.__name__}); {AGAIN}")
    try:
        check_labels(spec["labels"])
    except ConfigError as error:
        raise ArtifactError(f"{path} is damaged ({error}); {AGAIN}") from None
    if spec["kind"] not in KINDS or not 0 < spec["width"] <= WIDEST or not 0 <= spec["hidden"] <= WIDEST:
        shape = f"kind {quote(spec['kind'])}, width {spec['width']}, hidden {spec['hidden']}"
        raise ArtifactError(f"{path} is damaged ({shape}); {AGAIN}")
    if spec["kind"] == "target" and spec["pooling"] != POOLING:
        raise ArtifactError(f"{path} was trained on pooling {spec['pooling']}, but this is {POOLING}; {AGAIN}")
    return spec


def _read_weights(path: Path, net: RouterNet) -> None:
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{path.parent} is no readable router ({error}); wanted {SPEC} and {WEIGHTS}") from None
    wanted = net.state_dict()
    if odd := sorted(wanted.keys() ^ tensors.keys()):
        raise ArtifactError(f"{path} has missing or unexpected tensors: {shorten(', '.join(odd), 300)}; {AGAIN}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            found, asked = ([*one.shape, str(one.dtype)] for one in (tensor, wanted[name]))
            raise ArtifactError(f"{path}: {name} is {found}, wanted {asked}; {AGAIN}")
        if not torch.isfinite(tensor).all():
            raise ArtifactError(f"{path}: {name} is not finite; {AGAIN}")
    if not (tensors["std"].min() > 0 and tensors["temperature"] > 0):
        raise ArtifactError(f"{path}: std and temperature must be > 0; {AGAIN}")
    net.load_state_dict(tensors, assign=True)
