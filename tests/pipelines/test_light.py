"""What serves a drafter imports nothing that only training or configuration needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("lightning", "pytorch_lightning", "hydra", "omegaconf", "datasets", "peft", "tensorboard")
SERVING = (
    "drafterforge.runtime.engine",
    "drafterforge.runtime.shapes",
    "drafterforge.targets.load",
    "drafterforge.targets.answer",
    "drafterforge.drafters.eagle3.checkpoint",
    "drafterforge.drafters.eagle3.fused",
    "drafterforge.artifacts.folder",
    "drafterforge.server.app",
    "drafterforge.server.serving",
    "drafterforge.interop.published_heads",
)


@pytest.mark.slow
def test_serving_imports_stay_light():
    code = f"import sys, {', '.join(SERVING)};print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
