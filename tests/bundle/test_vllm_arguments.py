"""vLLM takes bundles as draft models, and its start ends with one line if an argument is wrong; vLLM is a stub."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from drafterforge.bundle import hub
from drafterforge.bundle.archive import pack
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.evaluation.vllm_server import MISTAKE
from drafterforge.interop.vllm.pool_folder import ARCHITECTURE, POOL, PoolFolder, write_pool

MODULE = "drafterforge.interop.vllm.engine_arguments"
DEPTH = 3
STACKED, LOOKUPS = ["general", "sql"], ["store", "retrieval"]


class UsageContext(Enum):
    """Who makes an engine."""

    LLM_CLASS = "LLM"
    OPENAI_API_SERVER = "server"


class DraftingConfig(SimpleNamespace):
    """vLLM's `SpeculativeConfig`."""

    disable_padded_drafter_batch = False


def engine_args(served: SimpleNamespace) -> type:
    """A class as vLLM's, whose target is `served`."""

    @dataclass
    class EngineArgs:
        speculative_config: dict[str, Any] | None = None
        spec_method: str | None = None
        spec_model: str | None = None
        additional_config: Any = None

        def create_engine_config(self, usage_context: UsageContext | None = None, headless: bool = False) -> Any:
            return self.create_speculative_config(target_model_config=served, target_parallel_config=None)

        def create_speculative_config(self, target_model_config: Any, target_parallel_config: Any) -> Any:
            for key, value in (("method", self.spec_method), ("model", self.spec_model)):
                if value is not None:
                    self.speculative_config = self.speculative_config or {}
                    assert key not in self.speculative_config
                    self.speculative_config[key] = value
            if self.speculative_config is None:
                return None
            return DraftingConfig(**{"num_speculative_tokens": DEPTH} | self.speculative_config)

    return EngineArgs


@pytest.fixture
def served_config(served) -> SimpleNamespace:
    """The `ModelConfig` of the target that the bundle was made for."""
    sizes = {"vocab_size": served.config.vocab_size, "hidden_size": served.config.hidden_size}
    return SimpleNamespace(
        model=str(served.folder),
        tokenizer=str(served.folder),
        tokenizer_revision=None,
        hf_text_config=SimpleNamespace(**sizes, num_hidden_layers=7),
        uses_mrope=False,
    )


@pytest.fixture
def platform() -> SimpleNamespace:
    """A CPU."""
    return SimpleNamespace(is_cpu=lambda: True)


@pytest.fixture
def arguments(monkeypatch, tmp_path, served_config, platform) -> Iterator[Callable[..., Any]]:
    """Makes `EngineArgs` with the plug-in installed."""
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    kind = engine_args(served_config)
    contents = {
        "vllm": {},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"EngineArgs": kind},
        "vllm.platforms": {"current_platform": platform},
        "vllm.usage": {},
        "vllm.usage.usage_lib": {"UsageContext": UsageContext},
    }
    for name, values in contents.items():
        stub = ModuleType(name)
        vars(stub).update(values)
        monkeypatch.setitem(sys.modules, name, stub)
    importlib.import_module(MODULE).install()
    yield kind
    del sys.modules[MODULE]


def drafting(model: object, **more: Any) -> dict[str, Any]:
    return {"method": "eagle3", "model": str(model), **more}


def test_a_bundle_is_opened_where_it_lies(arguments, bundle, tmp_path):
    config = arguments(drafting(bundle)).create_engine_config()
    pool = PoolFolder.open(Path(config.model))
    assert (pool.stacked, pool.lookups, pool.bundle) == (STACKED, LOOKUPS, bundle)
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["config.json"]
    content = json.loads((pool.folder / "config.json").read_text())
    assert (content["architectures"], content[POOL]) == ([ARCHITECTURE], STACKED)
    assert arguments(drafting(bundle)).create_engine_config().model == config.model  # as every process finds it
    assert arguments(drafting(config.model)).create_engine_config().model == config.model


def test_a_relative_path_is_opened_from_any_folder(arguments, bundle, monkeypatch, tmp_path):
    monkeypatch.chdir(bundle.parent)
    config = arguments(drafting(bundle.name)).create_engine_config()
    monkeypatch.chdir("/")
    assert PoolFolder.open(Path(config.model)).bundle == bundle


def test_an_archive_is_unpacked_to_the_cache(arguments, bundle, tmp_path):
    pack(bundle, tmp_path / "house.tar")
    pool = PoolFolder.open(Path(arguments(drafting(tmp_path / "house.tar")).create_engine_config().model))
    assert pool.stacked == STACKED and tmp_path / "cache" / "bundles" in pool.bundle.parents


def test_a_hub_id_is_downloaded_if_its_repository_holds_a_bundle(arguments, bundle, monkeypatch):
    def file_exists(api: Any, repository: str, name: str, *, revision: str | None) -> bool:
        return (repository, name, revision) == ("me/house", "bundle.json", "v2")

    def download(repository: str, *, local_dir: Path, **rest: Any) -> None:
        shutil.copytree(bundle, local_dir, dirs_exist_ok=True)

    monkeypatch.setattr(huggingface_hub.HfApi, "file_exists", file_exists)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    config = arguments(drafting("me/house@v2")).create_engine_config()
    assert PoolFolder.open(Path(config.model)).bundle == hub.download_folder("me/house@v2")
    assert arguments(drafting("me/head")).create_engine_config().model == "me/head"


def test_a_hub_that_does_not_answer_holds_no_bundle(arguments, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "file_exists", fail)
    assert arguments(drafting("me/head")).create_engine_config().model == "me/head"


def test_other_draft_models_reach_vllm_unchanged(arguments, tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    (tmp_path / "head.gguf").write_bytes(b"GGUF" * 200)
    for model in (tmp_path, tmp_path / "head.gguf", tmp_path / "nowhere"):
        typed = drafting(model, draft_tensor_parallel_size=1)
        config = arguments(typed, additional_config={"drafterforge": {"selektor": "x"}}).create_engine_config()
        assert vars(config) == {"num_speculative_tokens": DEPTH, **typed}
    assert arguments({"method": "ngram"}).create_engine_config().method == "ngram"
    assert arguments().create_engine_config() is None


def test_a_pool_drafts_with_eagle3(arguments, bundle):
    for config in (
        arguments({"model": str(bundle)}).create_engine_config(),
        arguments(spec_model=str(bundle)).create_engine_config(),
        arguments(spec_model=str(bundle), spec_method="eagle3").create_engine_config(),
    ):
        assert config.method == "eagle3" and PoolFolder.open(Path(config.model)).bundle == bundle
    with pytest.raises(ConfigError, match="drafts with method eagle3, but method=ngram; leave it out"):
        arguments(drafting(bundle, method="ngram")).create_engine_config()


@pytest.mark.parametrize("as_pool", [False, True])
@pytest.mark.parametrize(
    ("name", "size"), [("vocab_size", 100), ("hidden_size", 7), ("num_hidden_layers", 2), ("tokenizer.json", 0)]
)
def test_a_bundle_of_another_target_is_refused(arguments, bundle, served_config, tmp_path, as_pool, name, size):
    model, difference = bundle, "another tokenizer.json"
    if as_pool:
        write_pool(bundle, tmp_path / "pool", "target", overwrite=False)
        model = tmp_path / "pool"
    if size:
        difference = f"{name} {size} instead of {getattr(served_config.hf_text_config, name)}"
        setattr(served_config.hf_text_config, name, size)
    else:
        (tmp_path / name).write_text("{}")
        served_config.tokenizer = str(tmp_path)
    with pytest.raises(ArtifactError, match=f"was made for target 'tiny', but vLLM serves .*, which has {difference};"):
        arguments(drafting(model)).create_engine_config()


def test_a_target_with_positions_of_images_is_refused(arguments, bundle, served_config):
    served_config.uses_mrope = True
    with pytest.raises(ConfigError, match=r"has positions of images \(M-RoPE\); a pool drafts for text only"):
        arguments(drafting(bundle)).create_engine_config()


def test_recording_needs_the_padded_batch(arguments, bundle):
    settings = {"drafterforge": {"record": "records"}}
    typed = arguments(drafting(bundle, disable_padded_drafter_batch=True), additional_config=settings)
    with pytest.raises(ConfigError, match="record needs the padded drafter batch"):
        typed.create_engine_config()


def test_a_target_without_a_tokenizer_file_is_served(arguments, bundle, served_config, monkeypatch, tmp_path):
    served_config.tokenizer = str(tmp_path)
    assert arguments(drafting(bundle)).create_engine_config()
    served_config.tokenizer = "owner/name"
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(tmp_path / "tokenizer.json"))
    assert arguments(drafting(bundle)).create_engine_config()
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"another tokenizer\.json"):
        arguments(drafting(bundle)).create_engine_config()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"selektor": "x"}, "has no key 'selektor'"),
        ({"carry": 1}, "must be of type bool"),
        (3, "must be an object"),
        ({"drafter": "sqll"}, "did you mean 'sql'"),
        ({"selector": "ucb2"}, "did you mean 'ucb1'"),
        ({"selector": "ucb1", "options": {"x": 1}}, "no option of ucb1 'x'"),
        ({"selector": "metasd_halving"}, "cannot serve many requests"),
    ],
)
def test_wrong_settings_end_a_server_with_one_line(arguments, bundle, capsys, settings, message):
    typed = arguments(drafting(bundle), additional_config={"drafterforge": settings})
    with pytest.raises(ConfigError, match=message):
        typed.create_engine_config(UsageContext.LLM_CLASS)
    assert capsys.readouterr().err == ""
    with pytest.raises(SystemExit) as end:
        typed.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and len(lines) == 1 and lines[0].startswith(MISTAKE) and message in lines[0]


def test_right_settings_are_accepted(arguments, bundle, platform):
    def start(settings: dict[str, Any]) -> Any:
        return arguments(drafting(bundle), additional_config={"drafterforge": settings}).create_engine_config()

    for settings in ({}, {"selector": "ucb1", "carry": True}, {"drafter": "store"}, {"drafter": "sql"}):
        assert start(settings)
    platform.is_cpu = lambda: False  # nothing looks up text on a GPU
    assert start({"drafter": "sql"})
    with pytest.raises(ConfigError, match="store"):
        start({"drafter": "store"})


@pytest.mark.parametrize("file", ["bundle.json", "drafters/sql/adapter/adapter_model.safetensors"])
@pytest.mark.parametrize("as_pool", [False, True])
def test_damaged_folders_are_refused(arguments, bundle, tmp_path, file, as_pool):
    model, inside = bundle, bundle
    if as_pool:
        write_pool(bundle, tmp_path / "pool", "target", overwrite=False)
        model, inside = tmp_path / "pool", tmp_path / "pool" / "bundle"
    (inside / file).write_bytes((inside / file).read_bytes()[:-2])
    with pytest.raises(ArtifactError, match=file.split("/")[-1]):
        arguments(drafting(model)).create_engine_config()


def test_a_pool_folder_without_its_bundle_is_refused(arguments, bundle, tmp_path):
    model = arguments(drafting(bundle)).create_engine_config().model
    bundle.rename(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=f"{model} is not a pool folder; type `drafterforge export"):
        arguments(drafting(model)).create_engine_config()
