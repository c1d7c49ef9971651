"""A trained router: prompt features to probabilities over the drafters of a pool, and its files.

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
from drafterforge.router.features import POOLING, TextEncoder, prompt_features, request_of
from drafterforge.router.net import RouterNet

SCHEMA_VERSION = 1
KINDS = ("target", "text")  # features of the target | of a text encoder
WEIGHTS, SPEC = "router.safetensors", "router.json"
SCHEDULER = "policy.json"  # a tree scheduler has this file instead
WIDEST = 1 << 20  # largest width of a layer
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
    """Maps a prompt to probabilities over labels, which are names of drafters or domains."""

    def __init__(
        self,
        net: RouterNet,
        labels: Sequence[str],
        *,
        target: str = "",
        target_fingerprint: str = "",
        encoder: TextEncoder | None = None,
    ) -> None:
        """target, target_fingerprint: the target whose features the net reads.  encoder: read its features instead."""
        self.net, self.labels, self.encoder = net.eval().requires_grad_(False), check_labels(labels), encoder
        self.target, self.target_fingerprint = target, target_fingerprint
        if net.num_labels != len(self.labels):
            raise ConfigError(
                f"the router's network has {net.num_labels} labels, but {len(self.labels)} names were given"
            )
        if encoder is not None and net.width != encoder.width:
            raise ConfigError(
                f"the router's network reads {net.width} features, but {encoder.source} has {encoder.width}"
            )

    @property
    def kind(self) -> str:
        """The kind of its features, one of `KINDS`."""
        return "target" if self.encoder is None else "text"

    def pooled(self, prompt: Tensor | str) -> Tensor:
        """The network's input, [F] float32, from the target's features [P, 3H] or a text."""
        if isinstance(prompt, str) != (self.kind == "text"):
            inputs = "texts" if self.kind == "text" else "the target's prompt features"
            raise ConfigError(
                f"this router reads {inputs}, got {type(prompt).__name__}; train one with router.features=..."
            )
        if isinstance(prompt, str):
            return self.encoder(prompt)
        if prompt.dim() != 2 or not len(prompt) or not prompt.shape[1] or prompt.shape[1] % self.net.width:
            raise ConfigError(
                f"this router reads features of a prompt that are a multiple of {self.net.width} wide, got "
                f"{list(prompt.shape)}"
            )
        return prompt_features(prompt, self.net.width)

    @torch.no_grad()
    def probabilities(self, prompt: Tensor | str) -> np.ndarray:
        """Calibrated probabilities of the labels, [L].  prompt: the target's features [P, 3H], or a text."""
        pooled = self.pooled(prompt).to(self.net.mean.device)
        return self.net.probabilities(pooled[None])[0].double().cpu().numpy()

    def label_shares(self, drafters: Sequence[str]) -> np.ndarray:
        """Share of each label's probability that each drafter of a pool gets, [L, N]; rows sum to 1.

        The drafter that a label names gets all of it; if it is not in the pool, its hybrid with retrieval does.  Other
        labels give all to the generalist, or equal shares to all drafters of a pool without one.
        """
        names = list(drafters)
        drafters = [name if domain_of(name) in names else domain_of(name) for name in names]
        if not drafters or not {*self.labels, GENERALIST} & set(drafters):
            raise ConfigError(
                f"the router knows {', '.join(self.labels)}, but the pool has {', '.join(names) or 'no drafter'}; "
                "take drafters that the router was trained for, or train a router for this pool"
            )
        shares = np.zeros((len(self.labels), len(drafters)))
        for row, label in enumerate(self.labels):
            drafter = label if label in drafters else GENERALIST
            if drafter in drafters:
                shares[row, drafters.index(drafter)] = 1.0
            else:
                shares[row] = 1.0 / len(drafters)
        return shares

    def drafter_probs(self, prompt: Tensor | str, drafters: Sequence[str]) -> np.ndarray:
        """Probability of each drafter of a pool for a prompt, [N]: `Routed` follows it, learners take it as prior."""
        return self.probabilities(prompt) @ self.label_shares(drafters)

    def advice(self, tokens: Sequence[int], features: Tensor, drafters: Sequence[str], tokenizer: Any) -> np.ndarray:
        """As `drafter_probs`, [N], from a prompt's token ids and the target's features of them, [P, 3H]."""
        return self.drafter_probs(features if self.kind == "target" else request_of(tokenizer, tokens), drafters)

    # --- files ---------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write `router.safetensors` and `router.json` into a folder; an encoder is referenced, not copied."""
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
        """Load the router in `folder`, and check that it fits the target.

        encoder: folder or hub id of the text encoder, if it has moved since training.
        Raises ArtifactError if files are damaged, newer, or made for another target or encoder.
        """
        folder = Path(folder)
        spec = _read_spec(folder / SPEC)
        if spec["kind"] == "target" and target_fingerprint not in (None, spec["target_fingerprint"]):
            raise ArtifactError(
                f"{folder} reads features of target {quote(spec['target'])} with fingerprint "
                f"{shorten(spec['target_fingerprint'])}, but this target has fingerprint {target_fingerprint}; {AGAIN}"
            )
        with torch.device("meta"):  # the description is compared with the stored tensors before memory is allocated
            net = RouterNet(spec["width"], len(spec["labels"]), spec["hidden"])
        _read_weights(folder / WEIGHTS, net)
        reader = None
        if spec["kind"] == "text":  # a bundle's file must not make this machine download what it names
            reader = TextEncoder.open(encoder or spec["encoder"], download=bool(encoder))
        if reader is not None and reader.fingerprint != spec["encoder_fingerprint"]:
            raise ArtifactError(
                f"{folder} reads the encoder {shorten(spec['encoder'])} with fingerprint "
                f"{shorten(spec['encoder_fingerprint'])}, but {reader.source} has {reader.fingerprint}; {AGAIN}"
            )
        targets = {key: spec[key] for key in ("target", "target_fingerprint")}
        return cls(net, spec["labels"], encoder=reader, **targets)


def check_labels(labels: Sequence[str]) -> list[str]:
    """The labels; ConfigError unless they are at least two, all different."""
    labels = list(labels)
    if not all(isinstance(label, str) for label in labels) or len(labels) < 2 or len(set(labels)) != len(labels):
        raise ConfigError(f"a router needs at least two labels, each once, got {shorten(labels)}")
    return labels


def _read_spec(path: Path) -> dict:
    if not path.exists() and (path.parent / SCHEDULER).exists():
        raise ConfigError(
            f"{path.parent} is a tree scheduler, not a router; type pool.scheduler={path.parent.name}, or "
            "`drafterforge train-policy policy=router` for a router"
        )
    try:
        spec = read_json(path)
    except ArtifactError as error:
        raise ArtifactError(
            f"{path.parent} is no readable router ({error}); it must hold {SPEC} and {WEIGHTS}"
        ) from None
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
        raise ArtifactError(
            f"{path} was trained with pooling {spec['pooling']}, but this version has {POOLING}; {AGAIN}"
        )
    return spec


def _describe(tensor: Tensor) -> list[Any]:
    return [*tensor.shape, str(tensor.dtype)]


def _read_weights(path: Path, net: RouterNet) -> None:
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(
            f"{path.parent} is no readable router ({shorten(error, 200)}); it must hold {SPEC} and {WEIGHTS}"
        ) from None
    expected = net.state_dict()
    if odd := sorted(expected.keys() ^ tensors.keys()):
        raise ArtifactError(f"{path} has missing or unexpected tensors: {shorten(', '.join(odd), 300)}; {AGAIN}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            raise ArtifactError(f"{path}: {name} is {_describe(tensor)}, wanted {_describe(expected[name])}; {AGAIN}")
        if not torch.isfinite(tensor).all():
            raise ArtifactError(f"{path}: {name} is not finite; {AGAIN}")
    if not (tensors["std"].min() > 0 and tensors["temperature"] > 0):
        raise ArtifactError(f"{path}: std and temperature must be > 0; {AGAIN}")
    net.load_state_dict(tensors, assign=True)
