"""Exports of the shipped pool, held-out prompts, our chain decoding of them, and other programs.

scripts/clients_env && pytest -m external
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from drafterforge.assembly.pools import open_pool
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.init import init_feature_norms
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.train.ttt import PackedBatch, lay_out, unroll
from drafterforge.errors import ArtifactError
from drafterforge.evaluation.held_out import held_out_prompts
from drafterforge.interop.export import export_drafters
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.rows import Generation
from drafterforge.targets.capture import FeatureCapture
from drafterforge.targets.load import Target, load_target
from drafterforge.targets.smollm2 import ensure_smollm2
from drafterforge.tree.grow import TreeShape

ROOT = Path(__file__).parents[2]
DEPTH, MAX_TOKENS = 3, 64
# Held-out prompts of the four grammars, and one whose answer ends before the limit.
NUM_PROMPTS, SHORT = 7, "Say hello."


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip these tests, which take minutes and gigabytes, unless the command names their marker or path."""
    if "external" in config.option.markexpr or any("external" in argument for argument in config.args):
        return
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in ours]


class Client:
    """Another program in its own environment."""

    def __init__(self, name: str) -> None:
        folder = Path(os.environ.get("CLIENTS", ROOT)) / f".venv-{name}"
        self.name, self.folder, self.python = name, folder, folder / "bin" / "python"

    def require(self) -> Client:
        """Skip the test where the environment is missing."""
        if not self.python.exists():
            pytest.skip(f"no environment at {self.folder}; type scripts/clients_env {self.name}")
        return self

    def require_plugin(self) -> Client:
        """Skip the test where the environment is missing, or has no drafterforge."""
        if self.require().run_code("import drafterforge"):
            pytest.skip(f"drafterforge is not installed beside {self.name}; type scripts/clients_env {self.name}")
        return self

    def env(self, **more: str) -> dict[str, str]:
        """Environment variables of its programs: one thread, no network, none of our packages."""
        variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return {**variables, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", **more}

    def run_code(self, code: str) -> int:
        """Run a line of Python; returns its exit status."""
        return subprocess.run([self.python, "-c", code], env=self.env(), capture_output=True).returncode

    def run(self, script: str | Path, *arguments: object, log: Path, **more: str) -> None:
        """Run a script to its end; on failure show the end of its log."""
        with open(log, "w") as output:
            command = [self.python, ROOT / "scripts" / "clients" / script, *map(str, arguments)]
            code = subprocess.run(command, stdout=output, stderr=output, env=self.env(**more)).returncode
        if code:
            pytest.fail(f"{script} ended with {code}: {log.read_text()[-3000:]}")


@torch.no_grad()
def our_logits(
    drafter: Eagle3Drafter, features: torch.Tensor, tokens: torch.Tensor, steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of our training's unrolled pass, [I, M, W], and the slot of each of its rows."""
    batch = PackedBatch(
        tokens=tokens,
        positions=torch.arange(tokens.numel()),
        loss_mask=torch.ones(tokens.numel(), dtype=torch.bool),
        lengths=[tokens.numel()],
        features=features,
        states=features,
        argmax=tokens,
    )
    layout = lay_out(batch, steps)
    return drafter.lm_head(unroll(drafter, batch, layout, steps, recompute=False)), layout.rows


def with_norms(drafter: Eagle3Drafter, features: torch.Tensor, norms: dict[str, bool]) -> Eagle3Drafter:
    """The drafter with untrained norms of EAGLE-3.1, sized to keep the scale of each feature."""
    drafter_31 = Eagle3Drafter(replace(drafter.spec, **norms), drafter.embedding)
    drafter_31.load_state_dict(drafter.state_dict(), strict=False)
    if drafter_31.spec.fc_norm:
        init_feature_norms(drafter_31, features)
    return drafter_31.eval()


def chains(target: Target, drafter: FusedDrafter, prompts: list[list[int]]) -> list[Generation]:
    """Our chain decoding of every prompt, some tokens beyond the limit."""
    torch.set_num_threads(1)
    engine = Engine(target, drafter, TreeShape(DEPTH + 1, DEPTH, 1), numerics="fast")
    return [engine.generate([prompt], MAX_TOKENS + DEPTH + 1)[0] for prompt in prompts]


@pytest.fixture(scope="session")
def target_folder() -> Path:
    try:
        return ensure_smollm2()
    except ArtifactError as error:
        pytest.skip(f"the embedded target is not here and cannot be fetched: {error}")


@pytest.fixture(scope="session")
def real(target_folder) -> Target:
    return load_target(TargetConfig(dtype="float32"))


@pytest.fixture(scope="session")
def exported(tmp_path_factory, target_folder) -> Callable[..., Path]:
    """Folder of a shipped drafter in a layout."""

    @cache
    def export(name: str, format: str, layout: str = "") -> Path:
        folder = tmp_path_factory.mktemp("export") / f"{name}-{format}{layout}"
        where = {"runs_dir": str(ROOT / "nowhere"), "out": str(folder)}
        *_, served = export_drafters(ExportConfig(drafter=name, format=format, layout=layout, **where))
        folder.with_suffix(".command").write_text(served.removeprefix("serve it with: "))
        return folder

    return export


@pytest.fixture(scope="session")
def prompts(real) -> list[list[int]]:
    """Token ids."""
    domain_prompts = held_out_prompts(real, NUM_PROMPTS, POOL_DOMAINS)
    return [*domain_prompts, Engine(real).read([{"role": "user", "content": SHORT}], 1, (), stream=False)[0]]


@pytest.fixture(scope="session")
def text(real, prompts, ours) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's features along a prompt and its answer, and the tokens."""
    tokens = prompts[0] + ours("general")[0].tokens
    return FeatureCapture(real)([tokens])[0].features, torch.tensor(tokens)


@pytest.fixture(scope="session")
def prompt_file(tmp_path_factory, prompts) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "ids.json"
    path.write_text(json.dumps(prompts))
    return path


@pytest.fixture(scope="session")
def ours(real, prompts) -> Callable[[str], list[Generation]]:
    """Our chain decoding of every prompt, some tokens beyond the limit, so that the cycle at the limit is complete."""

    @cache
    def decode(name: str) -> list[Generation]:
        return chains(real, open_pool(ROOT / "nowhere", real, [name])[name], prompts)

    return decode
