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
from drafterforge.interop.vllm.settings import SOURCE, PoolServing
from drafterforge.router.features import TextEncoder
from tests.bundle.conftest import edit, rehash

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
    draft_sample_method = "greedy"
    enable_adaptive_verification = False

    @property
    def draft_model_config(self) -> SimpleNamespace | None:
        """The draft model's `ModelConfig`; None for a model that is no folder."""
        path = Path(getattr(self, "model", "")) / "config.json"
        content = json.loads(path.read_text()) if path.is_file() else {"architectures": None}
        return SimpleNamespace(hf_config=SimpleNamespace(architectures=content["architectures"]))


def engine_args(served: SimpleNamespace) -> type:
    """A class as vLLM's, whose target is `served`."""

    @dataclass
    class EngineArgs:
        speculative_config: dict[str, Any] | None = None
        spec_method: str | None = None
        spec_model: str | None = None
        additional_config: Any = None

        def create_engine_config(self, usage_context: UsageContext | None = None, headless: bool = False) -> Any:
            drafting = self.create_speculative_config(target_model_config=served, target_parallel_config=None)
            return SimpleNamespace(
                speculative_config=drafting,
                additional_config=self.additional_config,
                parallel_config=SimpleNamespace(prefill_context_parallel_size=served.num_prefill_ranks),
                use_v2_model_runner=served.use_v2_model_runner,
            )

        def start(self) -> Any:
            """The drafting config of an engine that starts."""
            return self.create_engine_config().speculative_config

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
        use_v2_model_runner=False,
        num_prefill_ranks=1,
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
    config = arguments(drafting(bundle)).start()
    pool = PoolFolder.open(Path(config.model))
    assert (pool.stacked, pool.lookups, pool.bundle) == (STACKED, LOOKUPS, bundle)
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["config.json"]
    content = json.loads((pool.folder / "config.json").read_text())
    assert (content["architectures"], content[POOL]) == ([ARCHITECTURE], STACKED)
    assert arguments(drafting(bundle)).start().model == config.model  # as every process finds it
    assert arguments(drafting(config.model)).start().model == config.model


def test_a_relative_path_is_opened_from_any_folder(arguments, bundle, monkeypatch, tmp_path):
    monkeypatch.chdir(bundle.parent)
    config = arguments(drafting(bundle.name)).start()
    monkeypatch.chdir("/")
    assert PoolFolder.open(Path(config.model)).bundle == bundle


def test_an_archive_is_unpacked_to_the_cache(arguments, bundle, tmp_path):
    pack(bundle, tmp_path / "house.tar")
    pool = PoolFolder.open(Path(arguments(drafting(tmp_path / "house.tar")).start().model))
    assert pool.stacked == STACKED and tmp_path / "cache" / "bundles" in pool.bundle.parents


def test_a_hub_id_is_downloaded_if_its_repository_holds_a_bundle(arguments, bundle, monkeypatch):
    def file_exists(api: Any, repository: str, name: str, *, revision: str | None) -> bool:
        return (repository, name, revision) == ("me/house", "bundle.json", "v2")

    def download(repository: str, *, local_dir: Path, **rest: Any) -> None:
        shutil.copytree(bundle, local_dir, dirs_exist_ok=True)

    monkeypatch.setattr(huggingface_hub.HfApi, "file_exists", file_exists)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    config = arguments(drafting("me/house@v2")).start()
    assert PoolFolder.open(Path(config.model)).bundle == hub.download_folder("me/house@v2")
    assert arguments(drafting("me/head")).start().model == "me/head"


def test_a_hub_that_does_not_answer_holds_no_bundle(arguments, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "file_exists", fail)
    assert arguments(drafting("me/head")).start().model == "me/head"


def test_other_draft_models_reach_vllm_unchanged(arguments, tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    (tmp_path / "head.gguf").write_bytes(b"GGUF" * 200)
    for model in (tmp_path, tmp_path / "head.gguf", tmp_path / "nowhere"):
        typed = drafting(model, draft_tensor_parallel_size=1)
        config = arguments(typed, additional_config={"drafterforge": {"selektor": "x"}}).start()
        assert vars(config) == {"num_speculative_tokens": DEPTH, **typed}
    assert arguments({"method": "ngram"}).start().method == "ngram"
    assert arguments().start() is None


def test_a_pool_drafts_with_eagle3(arguments, bundle):
    for config in (
        arguments({"model": str(bundle)}).start(),
        arguments(spec_model=str(bundle)).start(),
        arguments(spec_model=str(bundle), spec_method="eagle3").start(),
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


def test_a_folder_that_cannot_be_recorded_to_is_refused_at_the_start(arguments, bundle, tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        typed = arguments(drafting(bundle), additional_config={"drafterforge": {"record": str(folder)}})
        with pytest.raises(ConfigError, match=r"record=.* cannot be used \(.*\); give another folder"):
            typed.create_engine_config()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({}, r"cannot record traffic; leave out record, or set VLLM_USE_V2_MODEL_RUNNER=0$"),
        ({"draft_sample_method": "probabilistic"}, "draft_sample_method=probabilistic; leave it out"),
        ({"enable_adaptive_verification": True}, "type enable_adaptive_verification=false"),
        ({"num_prefill_ranks": 2}, "type prefill_context_parallel_size=1"),
    ],
)
def test_what_the_v2_runner_lacks_is_refused_at_the_start(
    arguments, bundle, served_config, tmp_path, capsys, setting, message
):
    settings = {"drafterforge": {} if setting else {"record": str(tmp_path / "records")}}
    served_config.num_prefill_ranks = setting.pop("num_prefill_ranks", 1)
    typed = arguments(drafting(bundle, **setting), additional_config=settings)
    assert typed.start()  # in the V1 runner
    served_config.use_v2_model_runner = True
    with pytest.raises(ConfigError, match=message):
        typed.create_engine_config()
    with pytest.raises(SystemExit):
        typed.create_engine_config(UsageContext.OPENAI_API_SERVER)
    assert capsys.readouterr().err.count("\n") == 1
    assert arguments(drafting("me/head", **setting), additional_config=settings).start()  # no pool


def test_a_target_without_a_tokenizer_file_is_served(arguments, bundle, served_config, monkeypatch, tmp_path):
    served_config.tokenizer = str(tmp_path)
    assert arguments(drafting(bundle)).start()
    served_config.tokenizer = "owner/name"
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(tmp_path / "tokenizer.json"))
    assert arguments(drafting(bundle)).start()
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
        ({"selector": "ucb1", "options": {"depth": 1}}, "no option of ucb1 'depth'"),
        ({"drafter": "sql", "options": {"seed": 1}}, "drafter=sql leaves nothing to select; leave out options"),
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
        return arguments(drafting(bundle), additional_config={"drafterforge": settings}).start()

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
    model = arguments(drafting(bundle)).start().model
    bundle.rename(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=f"the bundle of {model}, at {bundle}, is gone; give"):
        arguments(drafting(model)).create_engine_config()


def with_defaults(bundle: Path, **defaults: Any) -> PoolFolder:
    """The pool of the bundle, with these defaults."""
    edit(bundle, lambda content: content["defaults"].update(defaults))
    return PoolFolder.of_bundle(bundle)


def with_router(bundle: Path, **changes: Any) -> PoolFolder:
    """The pool of the bundle, with these changes to its router's description."""
    path = bundle / "routers/domains/router.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    rehash(bundle, "routers/domains/router.json")
    return PoolFolder.of_bundle(bundle)


def add_drafter(bundle: Path, kind: str, **changes: Any) -> None:
    """Add a drafter `large`, like `general` but for its kind and these changes to its config."""
    shutil.copytree(bundle / "drafters/general", bundle / "drafters/large")
    config = bundle / "drafters/large/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))

    def change(content: dict) -> None:
        general = next(entry for entry in content["drafters"] if entry["name"] == "general")
        content["drafters"].append(general | {"name": "large", "kind": kind, "path": "drafters/large"})
        content["defaults"]["drafters"].append("large")

    edit(bundle, change)
    rehash(bundle, *(f"drafters/large/{path.name}" for path in (bundle / "drafters/large").iterdir()))


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("draft_vocab_size", 30, "draft_vocab_size"),
        ("intermediate_size", 24, "intermediate_size"),
        ("norm_output", True, "norm_output"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 5.0}, "rope_parameters"),
    ],
)
def test_drafters_that_do_not_stack_are_refused_with_a_command(bundle, tmp_path, monkeypatch, key, value, field):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    write_pool(bundle, tmp_path / "pool", "target", overwrite=False)
    add_drafter(bundle, "eagle3", **{key: value})
    command = r'type `drafterforge export bundle=tiny "pool\.drafters=\[general,sql,store,retrieval\]" overwrite=true`'
    message = f"general and large of the bundle tiny differ in {field}, .*{command}"
    with pytest.raises(ArtifactError, match=message):
        PoolFolder.of_bundle(bundle)
    with pytest.raises(ArtifactError, match=message):
        write_pool(bundle, tmp_path / "pool", "target", overwrite=True)
    config = tmp_path / "pool" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {POOL: [*STACKED, "large"]}))
    shutil.copytree(bundle, tmp_path / "pool" / "bundle", dirs_exist_ok=True)  # as an earlier version wrote it
    with pytest.raises(ArtifactError, match=message):
        PoolFolder.open(tmp_path / "pool")


def test_drafters_of_other_lengths_and_tokens_stack(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    add_drafter(bundle, "eagle3", max_position_embeddings=99, eos_token_id=[1, 2])
    assert PoolFolder.of_bundle(bundle).stacked == [*STACKED, "large"]


def test_drafters_that_vllm_cannot_run_are_refused_with_a_command(bundle):
    add_drafter(bundle, "block")
    command = r'type `drafterforge export bundle=tiny "pool\.drafters=\[general,sql,store,retrieval\]" overwrite=true`'
    with pytest.raises(ArtifactError, match=f"has large; vLLM can run EAGLE-3 drafters and retrieval only; {command}"):
        PoolFolder.of_bundle(bundle)
    edit(bundle, lambda content: content["defaults"].update(drafters=["store"]))
    with pytest.raises(ArtifactError, match=r'has no EAGLE-3 drafter; .*"pool\.drafters=\[\.\.\.\]"'):
        PoolFolder.of_bundle(bundle)


def test_typed_options_replace_those_of_the_bundle_one_by_one(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    pool = with_defaults(bundle, selector="ucb1", options={"seed": 3, "discount": 0.9, "carry": True})
    defaults = {"seed": 3, "discount": 0.9}
    for values, options, carry in (
        ({}, defaults, True),
        ({"selector": "ucb1"}, defaults, True),
        ({"options": {"seed": 5, "carry": False}}, defaults | {"seed": 5}, False),
        ({"selector": "exp3spec"}, {}, False),
        ({"selector": "exp3spec", "carry": True}, {}, True),
    ):
        serving = PoolServing.open(pool, values)
        assert (serving.options, serving.carry) == (options, carry), values
        assert serving.selector(2, DEPTH, 1, "cpu").rule.carry is carry


def test_a_bundle_whose_selector_cannot_be_served_says_what_to_type(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    pool = with_defaults(bundle, selector="router")
    hint = """type --additional-config '{"drafterforge": {"selector": "hedgespec"}}'"""
    with pytest.raises(ConfigError, match=f"selects with 'router', which cannot serve many requests at once; {hint}$"):
        PoolServing.open(pool, {})
    with pytest.raises(ConfigError, match=r"""type POOL='{"selector": "hedgespec"}'$"""):
        PoolServing.open(pool, {}, "POOL")
    assert PoolServing.open(pool, {"selector": "hedgespec"}, SOURCE).router


def test_a_router_that_knows_no_drafter_is_left_out(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    assert PoolServing.open(PoolFolder.of_bundle(bundle), {}).router.labels == ["general", "sql"]
    pool = with_router(bundle, labels=["poems", "law"])
    assert PoolServing.open(pool, {}).router  # `general` takes what no drafter is for
    serving = PoolServing.open(with_defaults(bundle, drafters=["sql", "store"]), {})
    assert serving.router is None and "prior" not in serving.options


def test_a_router_of_texts_is_left_out_without_its_encoder(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(TextEncoder, "open", None)  # it would fail
    pool = with_router(bundle, kind="text", encoder="nowhere")
    assert pool.router() is None and PoolServing.open(pool, {}).router is None
