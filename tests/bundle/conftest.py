"""A bundle with every kind of part for a tiny target on disk, its drafters, and heads in the published layouts."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from drafterforge.artifacts.manifest import Manifest, canonical_json
from drafterforge.assembly.bundles import tokenizer_sha256
from drafterforge.bundle.record import BUNDLE, BundleRecord, Defaults, DrafterEntry, PartEntry, TargetReference
from drafterforge.bundle.write import write_bundle
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.checkpoint import save_drafter
from drafterforge.drafters.eagle3.lora import ADAPTER, CONFIG, WEIGHTS
from drafterforge.drafters.retrieval.model import Datastore
from drafterforge.interop.layout import TargetFacts
from drafterforge.interop.sglang.layout import write_sglang
from drafterforge.interop.vllm.layouts import write_vllm
from drafterforge.router.net import RouterNet
from drafterforge.router.router import Router
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.nets import ActorCritic
from drafterforge.schedulers.observation import observation_size
from drafterforge.schedulers.policy import save_policy
from drafterforge.schedulers.spec import PolicySpec
from drafterforge.targets.load import Target, load_target
from tests.bundle.builders import facts_of, random_drafter, write_drafter, write_expert
from tests.models import tiny_drafter
from tests.tiny import save_tiny_target

GRID = ActionGrid("tiny", (1, 2, 4), (1, 2), (1, 2))
CONVERSATIONS = [[{"role": "user", "content": text}] for text in ("How many?", "SELECT 1;")]


@pytest.fixture(scope="session")
def served(tmp_path_factory) -> Target:
    """The target that the bundle is for."""
    return load_target(TargetConfig(name="tiny", source="hf", model=str(tmp_folder(tmp_path_factory)), dtype="float32"))


def tmp_folder(tmp_path_factory) -> Path:
    """A tiny model's folder."""
    return save_tiny_target(tmp_path_factory.mktemp("served") / "tiny")


def write_adapter(folder: Path, drafter: torch.nn.Module, rank: int = 2) -> None:
    """Random additions to two projections, in peft's files."""
    (folder / ADAPTER).mkdir(parents=True)
    weights = dict(drafter.named_parameters())
    tensors = {}
    for name in ("fc", "midlayer.mlp.up_proj"):
        out, width = weights[f"{name}.weight"].shape
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, width)
        tensors[f"base_model.model.{name}.lora_B.weight"] = 0.1 * torch.randn(out, rank)
    save_file(tensors, folder / ADAPTER / WEIGHTS)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["fc", "up_proj"]}
    (folder / ADAPTER / CONFIG).write_text(json.dumps(config))


@pytest.fixture(scope="session")
def parts(tmp_path_factory, served) -> tuple[BundleRecord, dict[str, Path]]:
    """A record without hashes, and where its files are."""
    return write_parts(tmp_path_factory.mktemp("parts"), served)


def write_parts(folder: Path, served: Target) -> tuple[BundleRecord, dict[str, Path]]:
    """A record without hashes of every kind of part, which is written into a folder, and where its files are."""
    torch.manual_seed(0)
    for name in ("drafters/general", "drafters/store", "policies/shapes", "routers/domains"):
        (folder / name).mkdir(parents=True)
    drafter = tiny_drafter(served)
    save_drafter(folder / "drafters/general", drafter, torch.float32)
    write_adapter(folder / "drafters/sql", drafter)
    Datastore.build([[5, 6, 7, 8], [5, 6, 9]]).save(folder / "drafters/store")
    weights = hashlib.sha256((folder / "drafters/general/model.safetensors").read_bytes()).hexdigest()[:16]
    spec = PolicySpec("shapes", "planner", served.fingerprint, "general", weights, "cpu", GRID.as_dict(), ["length"])
    net = ActorCritic(observation_size(["length"], 0, 0, 0), len(GRID), [8], [8])
    save_policy(folder / "policies/shapes", PolicySpec(**{**asdict(spec), "hidden": {"shapes": [8]}}), {"shapes": net})
    width = served.config.hidden_size
    router = Router(RouterNet(width, 2), ["general", "sql"], target="tiny", target_fingerprint=served.fingerprint)
    router.save(folder / "routers/domains")
    record = BundleRecord(
        name="tiny",
        target=TargetReference(
            name="tiny",
            source="hf",
            model=str(served.folder),
            revision=None,
            fingerprint=served.fingerprint,
            tokenizer_sha256=tokenizer_sha256(served.folder),
            model_type="llama",
            vocab_size=served.config.vocab_size,
            hidden_size=width,
            num_layers=7,
            taps=list(served.backbone.taps),
            licence="Apache-2.0",
        ),
        drafters=[
            DrafterEntry("general", "eagle3", "drafters/general", "", "general", "MIT", {"val_accept_length": 2.0}, {}),
            DrafterEntry("sql", "eagle3", "drafters/sql", "general", "sql", "", {}, {"rows": [{"mat": 2.5}]}),
            DrafterEntry("store", "retrieval", "drafters/store", "", "sql", "", {}, {}),
            DrafterEntry("retrieval", "retrieval", "", "", "", "", {}, {}),
        ],
        parts=[
            PartEntry("shapes", "policy", "policies/shapes", {"method": "planner"}),
            PartEntry("domains", "router", "routers/domains", {}),
        ],
        defaults=Defaults(["general", "sql", "store", "retrieval"], scheduler="shapes", router="domains"),
        licences={"target": "Apache-2.0"},
        created="2026-01-01T00:00:00+00:00",
    )
    return record, {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="session")
def shared_bundle(tmp_path_factory, parts) -> Path:
    """The bundle on disk; not to be changed."""
    folder = tmp_path_factory.mktemp("bundles") / "tiny"
    write_bundle(folder, *parts, overwrite=False)
    return folder


@pytest.fixture
def bundle(shared_bundle, tmp_path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(shared_bundle, tmp_path / "tiny"))


def edit(folder: Path, change: Callable[[dict], None]) -> None:
    """Change bundle.json and give it the digest of its new content, as an attacker would."""
    path = folder / BUNDLE
    content = json.loads(path.read_text())
    content.pop("digest")
    change(content)
    content["digest"] = hashlib.sha256(canonical_json(content)).hexdigest()
    path.write_text(json.dumps(content))


def rehash(folder: Path, *names: str) -> None:
    """Write the current hashes of these files to bundle.json."""

    def change(content: dict) -> None:
        for name in names:
            data = (folder / name).read_bytes()
            content["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}

    edit(folder, change)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A tiny Llama and its tokenizer."""
    return save_tiny_target(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="session")
def facts(tiny) -> TargetFacts:
    return facts_of(tiny)


@pytest.fixture
def drafter(facts):
    return random_drafter(facts)


@pytest.fixture
def runs(tmp_path, facts, drafter) -> Path:
    """Runs with a generalist and a LoRA expert of it."""
    path = write_drafter(tmp_path / "runs", facts, drafter)
    write_expert(tmp_path / "runs", facts, random_drafter(facts), Manifest.read(path))
    return tmp_path / "runs"


@pytest.fixture(scope="session")
def heads(tmp_path_factory, facts) -> Path:
    """`drafter` as a head in SafeAILab's and SGLang's layout, and in speculators'."""
    torch.manual_seed(0)
    drafter, folder = random_drafter(facts), tmp_path_factory.mktemp("heads")
    for name, write in (("eagle3", write_sglang), ("speculators", write_vllm)):
        (folder / name).mkdir()
        write(folder / name, drafter, facts, folder / name)
    return folder


@pytest.fixture
def eagle3(tmp_path, heads) -> Path:
    """A copy of the head in SafeAILab's and SGLang's layout."""
    return Path(shutil.copytree(heads / "eagle3", tmp_path / "eagle3"))


@pytest.fixture
def speculators(tmp_path, heads) -> Path:
    """A copy of the head in speculators' layout."""
    return Path(shutil.copytree(heads / "speculators", tmp_path / "speculators"))
