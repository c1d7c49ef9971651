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
    drafters,
    features,
    heads,
    latency,
    manifests,
    policies,
    routers,
    targets,
    tensors,
    traces,
)
from tests.fuzz.harness import Reader
from tests.fuzz.inputs import grammars, jsonl, overrides, questions, requests

READERS: dict[str, Callable[[Path], Reader]] = {
    "overrides": overrides,
    "grammars": grammars,
    "jsonl": jsonl,
    "questions": questions,
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
    "drafters": drafters,
    "targets": targets,
    "heads": heads,
    "blocks": blocks,
    "requests": requests,
}
