"""A tiny target on disk, and a folder of runs with a generalist, an expert of it and a datastore."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from drafterforge.artifacts.folder import write_artifact
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.manifest import Manifest
from drafterforge.config.drafter import LoraConfig
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.checkpoint import save_drafter
from drafterforge.drafters.eagle3.lora import ADAPTER
from drafterforge.drafters.eagle3.train.lora import add_adapter, save_adapter
from drafterforge.drafters.retrieval.model import Datastore
from drafterforge.router.net import RouterNet
from drafterforge.router.router import Router
from drafterforge.targets.load import Target, load_target
from tests.models import tiny_drafter
from tests.tiny import save_tiny_target


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """The target's folder."""
    return save_tiny_target(tmp_path_factory.mktemp("assembly") / "tiny")


@pytest.fixture(scope="session")
def served(folder) -> Target:
    """The target, loaded."""
    return load_target(TargetConfig(name="tiny", source="hf", model=str(folder), dtype="float32"))


class Runs:
    """Writes `drafters` artifacts as train-drafter would leave them."""

    def __init__(self, folder: Path, target: Target) -> None:
        self.folder, self.target = folder, target

    def write(self, name: str, save, domain: str, kind: str = "eagle3", parents=(), **metrics: object) -> Manifest:
        path = self.folder / self.target.name / "drafters" / name
        settings = {"target": self.target.name, "target_fingerprint": self.target.fingerprint}
        config = {"drafter": {"kind": kind}, "domain": domain}
        with write_artifact(
            path, kind="drafters", name=name, parents=list(parents), metrics=metrics, config=config, **settings
        ) as inside:
            save(inside)
        return Manifest.read(path)

    def full(self, name: str, domain: str = "general") -> Manifest:
        """With weights of its own, from scratch."""
        drafter = tiny_drafter(self.target)
        return self.write(
            name, lambda inside: save_drafter(inside, drafter), domain, val_accept_length=2.0, best_step=9
        )

    def expert(self, name: str, general: Manifest, best_step: int = 5, **metrics: object) -> Manifest:
        """Additions to a generalist."""
        lora = LoraConfig(rank=2, alpha=4.0)
        model = add_adapter(tiny_drafter(self.target), lora, seed=0)

        def save(inside: Path) -> None:
            save_adapter(inside / ADAPTER, model, lora, general.name)

        return self.write(name, save, name, parents=[general], val_accept_length=2.1, best_step=best_step, **metrics)

    def store(self, name: str, domain: str = "general") -> Manifest:
        """A datastore."""
        store = Datastore.build([[5, 6, 7, 8], [5, 6, 9]])
        return self.write(name, store.save, domain, kind="retrieval", sequences=2)

    def router(self, labels: list[str]) -> None:
        """A router between drafters of these names."""
        net = RouterNet(self.target.config.hidden_size, len(labels))
        router = Router(net, labels, target="tiny", target_fingerprint=self.target.features_fingerprint)
        path = artifact_dir(self.folder, "tiny", "policies", "router")
        settings = {"target": "tiny", "target_fingerprint": self.target.fingerprint, "config": {}}
        with write_artifact(path, kind="policies", name="router", **settings) as inside:
            router.save(inside)


@pytest.fixture
def empty(tmp_path, served) -> Runs:
    """A folder without any run."""
    return Runs(tmp_path / "runs", served)


@pytest.fixture
def runs(empty) -> Runs:
    """A generalist, an expert and a datastore."""
    torch.manual_seed(0)
    general = empty.full("general")
    empty.expert("sql", general)
    empty.store("store")
    return empty
