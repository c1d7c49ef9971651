"""What reads files and requests of strangers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.fuzz.artifacts import (
    answers,
    archives,
    blocks,
    bundles,
    datastores,
    features,
    heads,
    latency,
    manifests,
    policies,
    routers,
    tensors,
    traces,
)
from tests.fuzz.harness import Reader
from tests.fuzz.inputs import grammars, jsonl, overrides, requests

READERS: dict[str, Callable[[Path], Reader]] = {
    "overrides": overrides,
    "grammars": grammars,
    "jsonl": jsonl,
    "bundles": bundles,
    "manifests": manifests,
    "safetensors": tensors,
    "archives": archives,
    "datastores": datastores,
    "answers": answers,
    "features": features,
    "traces": traces,
    "policies": policies,
    "routers": routers,
    "latency": latency,
    "heads": heads,
    "blocks": blocks,
    "requests": requests,
}
