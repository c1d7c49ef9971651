"""The way in from Python: `drafterforge.load`, `drafterforge.open`, and text in, text out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import drafterforge
from drafterforge import DrafterforgeError
from drafterforge.assembly.engines import open_engine
from drafterforge.assembly.packing import BundleContents, add_drafter, make_bundle, target_reference
from drafterforge.bundle.record import read_record
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.commands import DoctorConfig
from drafterforge.config.compose import load_config
from drafterforge.config.names import AUTO, POOL
from drafterforge.config.pool import PoolConfig
from drafterforge.config.serving import GenerateConfig
from drafterforge.config.target import TargetConfig
from drafterforge.data.chat import prompt_ids
from drafterforge.drafters.base import DrafterSource
from drafterforge.errors import ConfigError
from drafterforge.runtime import verify_costs
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.sampling import Sampling
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import load_target
from tests.assembly.conftest import Runs
from tests.tiny import build_tokenizer

QUESTION, SECOND_QUESTION = "Count users by country.", "How many?"
NAMES = "general", "sql"
MESSAGES = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def engine(runs):
    """The default engine of the tiny target."""
    return drafterforge.load(runs.target, runs_dir=runs.folder)


def plain(target, prompt, length: int, **sampling: object) -> str:
    """What the target answers without any drafter."""
    return Engine(target).generate([prompt], length, Sampling(**sampling))[0].text


def test_importing_the_package_brings_no_torch_and_shows_its_names():
    code = "import sys, drafterforge; print(sorted(drafterforge.__all__), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['DrafterforgeError', 'load', 'open'] False\n"
    assert set(drafterforge.__all__) <= set(dir(drafterforge))
    assert drafterforge.load.__module__ == drafterforge.open.__module__ == "drafterforge.assembly.load"
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        drafterforge.__getattr__("laod")


@pytest.mark.parametrize("drafter", ["auto", None, "", "general", "sql", "store", "general+retrieval", "pool"])
def test_every_drafter_gives_the_targets_own_answer(runs, drafter):
    engine = drafterforge.load(runs.target, drafter=drafter, runs_dir=runs.folder)
    assert engine.generate(QUESTION, max_new_tokens=24) == plain(runs.target, MESSAGES, 24)


def test_a_folder_is_a_target_and_auto_is_what_it_says(runs, folder):
    engine = drafterforge.load(folder, runs_dir=runs.folder, dtype="float32", device="cpu")
    assert (engine.target.fingerprint, engine.drafter) == (runs.target.fingerprint, "auto")
    assert drafterforge.load(runs.target, runs_dir=runs.folder / "none").runtime.drafter is None


def test_the_home_folder_of_runs_dir_is_expanded(bundled, monkeypatch):
    monkeypatch.setenv("HOME", str(bundled.folder.parent))
    typed = f"~/{bundled.folder.name}"
    engine = drafterforge.load(bundled.target, drafter="sql", runs_dir=typed)
    assert engine.drafter == "sql"
    assert drafterforge.open("house", target=bundled.target, runs_dir=typed).drafter == "bundle house"
    cfg = load_config("doctor", DoctorConfig, [f"runs_dir={typed}"])
    assert cfg.runs_dir == str(bundled.folder)


def test_a_text_is_a_users_message_unless_it_is_to_be_completed(engine):
    target = engine.target
    assert engine.generate(QUESTION, max_new_tokens=16) == engine.chat(MESSAGES, max_new_tokens=16)
    raw = engine.generate(QUESTION, max_new_tokens=16, raw=True)
    assert raw == plain(target, QUESTION, 16) != engine.generate(QUESTION, max_new_tokens=16)


def test_without_a_chat_template_a_text_is_completed(engine, monkeypatch):
    monkeypatch.setattr(engine.runtime.target, "tokenizer", build_tokenizer(None))
    assert engine.generate(QUESTION, max_new_tokens=16) == engine.generate(QUESTION, max_new_tokens=16, raw=True)


def test_lists_give_lists_and_conversations_are_prompts(engine):
    alone = [engine.generate(text, max_new_tokens=12) for text in (QUESTION, SECOND_QUESTION)]
    assert engine.generate([QUESTION, SECOND_QUESTION], max_new_tokens=12) == alone
    assert engine.generate([MESSAGES, [{"role": "user", "content": SECOND_QUESTION}]], max_new_tokens=12) == alone
    assert engine.generate([QUESTION], max_new_tokens=12) == alone[:1] and engine.generate([]) == []


def test_a_stream_is_the_answer_in_pieces(engine):
    pieces = list(engine.stream(QUESTION, max_new_tokens=24))
    assert len(pieces) > 1 and all(pieces)
    assert "".join(pieces) == engine.generate(QUESTION, max_new_tokens=24)


def test_options_reach_the_sampling_and_the_stop_rule(engine):
    options = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 3}
    sampled = engine.generate(QUESTION, max_new_tokens=32, **options)
    assert sampled == plain(engine.target, MESSAGES, 32, **options) != engine.generate(QUESTION, max_new_tokens=32)
    stop = next(char for char in sampled[2:] if char.isascii())
    assert engine.generate(QUESTION, max_new_tokens=32, stop=stop, **options) == sampled[: sampled.index(stop)]


def test_an_answer_has_tokens_cycles_and_seconds(engine):
    answer = engine.answer(QUESTION, max_new_tokens=8)
    assert len(answer.tokens) == 8 and answer.stop_reason == "length" and answer.mat >= 1 and answer.time_s["total"] > 0
    assert answer.text == engine.generate(QUESTION, max_new_tokens=8)
    assert [len(result.tokens) for result in engine.answer([QUESTION, SECOND_QUESTION], max_new_tokens=4)] == [4, 4]
    assert answer.prompt == prompt_ids(engine.target.tokenizer, MESSAGES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda engine: engine.generate(QUESTION, max_tokens=4),
            r"no option max_tokens=; did you mean max_new_tokens=",
        ),
        (
            lambda engine: engine.generate(QUESTION, colour="red"),
            "no option colour=; the options are max_new_tokens, temp",
        ),
        (lambda engine: engine.generate(QUESTION, temperature=-1), "temperature must be >= 0, got -1"),
        (lambda engine: engine.generate(QUESTION, max_new_tokens=0), "max_new_tokens must be >= 1, got 0"),
        (
            lambda engine: engine.generate(QUESTION, max_new_tokens=2.5),
            "max_new_tokens must be a whole number, got 2.5",
        ),
        (lambda engine: engine.generate(QUESTION, temperature="hot"), "temperature must be a number, got 'hot'"),
        (lambda engine: engine.generate(QUESTION, temperature=None), "temperature must be a number, got None"),
        (lambda engine: engine.generate(QUESTION, top_k=2.5), r"top_k must be a whole number, got 2\.5"),
        (lambda engine: engine.generate(QUESTION, seed=True), "seed must be a whole number, got True"),
        (lambda engine: engine.generate(QUESTION, stop=5), "stop must be a text or a list of texts, got 5"),
        (lambda engine: engine.generate(" "), "the prompt is empty"),
        (lambda _: drafterforge.load("smolm2-135m"), "no target 'smolm2-135m'; did you mean smollm2-135m"),
        (lambda _: drafterforge.open(None), "a bundle is a folder, a .tar, a hub id or a name, got None"),
        (
            lambda engine: engine.generate([[1, 2]]),
            "text or a list of messages, got list; token ids go to engine.runtime",
        ),
        (lambda engine: engine.generate(7), "text or a list of messages, got int"),
        (lambda engine: engine.chat("Hello"), r"chat takes a list of messages such as"),
        (lambda engine: Engine("owner/name"), r"takes a loaded target, got 'owner/name'; type drafterforge.load\('own"),
    ],
)
def test_mistakes_are_one_helpful_line(engine, call, message):
    with pytest.raises(DrafterforgeError, match=message) as error:
        call(engine)
    assert "\n" not in str(error.value)


def test_what_is_missing_or_contradictory_is_told_before_the_target_is_loaded(tmp_path):
    with pytest.raises(DrafterforgeError, match="is read by drafter=pool only"):
        drafterforge.load("owner/name", drafter="sql", pool=PoolConfig(selector="ucb1"))
    for drafter in ("auto", None):
        with pytest.raises(DrafterforgeError, match="planner needs a drafter; type drafter=NAME or drafter=pool"):
            drafterforge.load("owner/name", drafter=drafter, pool=PoolConfig(scheduler="planner"))
    with pytest.raises(DrafterforgeError, match="no bundle named 'house' for target 'smollm2-135m'"):
        drafterforge.open("house", runs_dir=tmp_path)
    with pytest.raises(DrafterforgeError, match=r"could not get target\.model=owner/name from the hub"):
        drafterforge.load("owner/name", runs_dir=tmp_path)


def test_a_text_with_a_token_that_the_target_lacks_is_one_line(runs, monkeypatch):
    """Such as a padding token that was added to the tokenizer alone."""
    engine = drafterforge.load(runs.target, drafter=None, runs_dir=runs.folder).runtime
    monkeypatch.setattr(engine, "target", Renamed(engine.target, lambda text: SimpleNamespace(input_ids=[10**6])))
    with pytest.raises(DrafterforgeError, match="token id 1000000 is not one of this target's"):
        engine.generate(["[PAD]"], 4)


class Renamed:
    """A target with another tokenizer."""

    def __init__(self, target, tokenizer) -> None:
        self.target, self.tokenizer = target, tokenizer

    def __getattr__(self, name: str):
        return getattr(self.target, name)


def test_a_suggested_command_finds_the_runs(runs, tmp_path):
    with pytest.raises(DrafterforgeError, match=f"`drafterforge train-drafter domain=sql .*runs_dir={tmp_path}`"):
        drafterforge.load(runs.target, drafter="sql", runs_dir=tmp_path)


def test_representations_are_one_line(engine):
    assert repr(engine.target) == "Target(tiny, float32 on cpu)"
    assert repr(engine) == "TextEngine(Target(tiny, float32 on cpu), drafter=auto, numerics=fast)"
    assert "\n" not in repr(engine.runtime) and len(repr(engine.runtime)) < 120


@pytest.fixture
def bundled(runs, folder):
    """Runs with a bundle `house`."""
    target = TargetConfig(name="tiny", source="hf", model=str(folder), dtype="float32")
    cfg = ExportConfig(target=target, bundle="house", runs_dir=str(runs.folder))
    make_bundle(cfg, runs.folder / "tiny" / "bundles" / "house")
    return runs


def test_a_bundle_opens_by_its_name_as_by_its_folder(bundled, tmp_path, monkeypatch):
    path = bundled.folder / "tiny" / "bundles" / "house"
    text = plain(bundled.target, MESSAGES, 12)
    monkeypatch.chdir(tmp_path)
    for bundle in ("house", path, str(path)):
        engine = drafterforge.open(bundle, dtype="float32")
        assert engine.generate(QUESTION, max_new_tokens=12) == text
    assert "drafter=bundle house" in repr(engine)
    assert drafterforge.open("house", target=bundled.target, drafter="sql", max_batch=3).runtime.max_batch == 3


@pytest.mark.parametrize(
    ("named", "drafters"),
    [
        ([], ["general+store", "sql+store"]),
        (["sql+store"], ["sql+store"]),  # `general` is packed, because the expert is an addition to it
        (["sql", "store"], ["sql+store"]),
        (["sql+retrieval", "general+store"], ["general+store", "sql+retrieval"]),
        (["general", "sql", "retrieval"], ["general+retrieval", "sql+retrieval"]),
    ],
)
def test_a_bundle_decodes_with_the_drafters_that_export_was_told(runs, folder, named, drafters):
    target = TargetConfig(name="tiny", source="hf", model=str(folder), dtype="float32")
    cfg = ExportConfig(bundle="named", target=target, runs_dir=str(runs.folder), pool=PoolConfig(drafters=named))
    make_bundle(cfg, runs.folder / "tiny" / "bundles" / "named")
    engine = drafterforge.open("named", runs_dir=runs.folder, dtype="float32").runtime
    assert engine.drafter.names == drafters and engine.drafter.worth is not None


@pytest.mark.parametrize(("labels", "parts"), [(["sql", "math"], ["costs", "router"]), (["law", "math"], ["costs"])])
def test_a_bundle_holds_the_router_only_if_it_knows_a_drafter(runs, folder, labels, parts):
    runs.router(labels)
    target = TargetConfig(name="tiny", source="hf", model=str(folder), dtype="float32")
    pool = PoolConfig(drafters=["sql", "store"])
    cfg = ExportConfig(bundle="routed", target=target, runs_dir=str(runs.folder), pool=pool)
    record = make_bundle(cfg, runs.folder / "tiny" / "bundles" / "routed")
    assert [part.kind for part in record.parts] == parts


def test_each_expert_is_packed_with_its_own_generalist(served, tmp_path):
    contents, cfg = BundleContents(), ExportConfig(bundle="both", runs_dir=str(tmp_path))
    digests = {}
    for seed, name in enumerate(("mine", "sql")):
        torch.manual_seed(seed)
        runs = Runs(tmp_path / name, served)
        general = runs.full("general")
        runs.expert(name, general)
        folder, digests[name] = tmp_path / name / "tiny" / "drafters", general.digest
        add_drafter(cfg, served, contents, DrafterSource(name, "eagle3", folder / name, folder / "general"))
    assert digests["mine"] != digests["sql"]
    bases = {entry.name: entry.base for entry in contents.drafters if entry.base}
    assert bases == {"mine": "general", "sql": f"general-{digests['sql'][:8]}"}


def test_a_target_of_the_hub_is_recorded_with_its_revision(folder, tmp_path):
    snapshot = shutil.copytree(folder, tmp_path / "snapshots" / "0a1b2c")
    target = load_target(TargetConfig(name="tiny", source="hf", model=str(snapshot), dtype="float32"))
    for typed, recorded in ((None, "0a1b2c"), ("v2", "v2")):
        hub = TargetConfig(name="tiny", source="hf", model="owner/tiny", revision=typed)
        assert target_reference(ExportConfig(target=hub), target).revision == recorded


def test_a_name_is_a_drafter_even_if_the_current_folder_has_a_folder_of_this_name(runs, folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "elsewhere" / "sql")  # a language model
    (tmp_path / "elsewhere" / "store").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    kinds = [type(drafterforge.load(runs.target, drafter=name, runs_dir=runs.folder).runtime.drafter) for name in NAMES]
    assert kinds[0] is kinds[1]
    target = TargetConfig(name="tiny", source="hf", model=str(folder), dtype="float32")
    pool = PoolConfig(drafters=["sql", "store"])
    cfg = ExportConfig(bundle="named", target=target, runs_dir=str(runs.folder), pool=pool)
    assert len(make_bundle(cfg, tmp_path / "named").drafters) == 3


def test_a_bundle_opens_with_a_target_that_is_given_as_a_configuration(bundled, folder):
    config = TargetConfig(source="hf", model=str(folder), dtype="float32")
    assert drafterforge.open("house", target=config, runs_dir=bundled.folder).target.name == "tiny"


def test_the_default_selector_is_used_where_it_is_typed(bundled, folder):
    target = TargetConfig(name="tiny", source="hf", model=str(folder), dtype="float32")
    typed = {"target": target, "runs_dir": str(bundled.folder)}
    for selector, drafter in (("", AUTO), ("hedgespec", AUTO), ("", POOL), ("hedgespec", POOL)):
        pool = PoolConfig(selector=selector)
        engine, _ = open_engine(GenerateConfig(bundle="house", drafter=drafter, pool=pool, **typed))
        assert engine.drafter.choose == ("hedgespec" if selector or drafter == POOL else "static")
    with pytest.raises(ConfigError, match=r"pool\.selector= is read by drafter=pool only"):
        open_engine(GenerateConfig(drafter=AUTO, pool=PoolConfig(selector="hedgespec"), **typed))
    path = bundled.folder / "tiny" / "bundles" / "hedged"
    make_bundle(ExportConfig(bundle="hedged", pool=PoolConfig(selector="hedgespec"), **typed), path)
    assert drafterforge.open(path, dtype="float32").runtime.drafter.choose == "hedgespec"


def test_a_bundle_holds_what_this_device_takes_for_trees(bundled, tmp_path, monkeypatch):
    path = bundled.folder / "tiny" / "bundles" / "house"
    assert describe_device(bundled.target.device) in read_record(path).part("costs", "costs").about["devices"]
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path))
    monkeypatch.setattr(verify_costs, "measure", lambda *_: pytest.fail("measured again"))
    assert drafterforge.open(path, dtype="float32").runtime.drafter.worth.costs.seconds[0] > 0


def test_a_name_of_two_bundles_is_refused_with_their_folders(bundled):
    bundles = bundled.folder / "tiny" / "bundles"
    shutil.copytree(bundles, bundled.folder / "other" / "bundles")
    with pytest.raises(DrafterforgeError, match=r"'house' names 2 bundles; open one of .*other.*tiny"):
        drafterforge.open("house", runs_dir=bundled.folder)
    assert drafterforge.open("house", target=bundled.target, runs_dir=bundled.folder).target is bundled.target


@pytest.mark.slow
def test_the_embedded_target_answers_with_what_is_shipped(tmp_path):
    engine = drafterforge.load("smollm2-135m", runs_dir=tmp_path)
    drafter = "auto" if engine.target.device.type == "cpu" else "general"
    assert engine.drafter == drafter
    fast = engine.answer(QUESTION, max_new_tokens=48)
    slow = drafterforge.load(engine.target, drafter=None, runs_dir=tmp_path).answer(QUESTION, max_new_tokens=48)
    assert fast.mat > 1.2 and slow.mat == 1  # how much drafts depends on the load of the machine
    if engine.runtime.numerics == "invariant" or engine.target.compute_dtype.itemsize == 4:
        assert fast.text == slow.text
