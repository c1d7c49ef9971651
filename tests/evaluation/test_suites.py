"""Prompts of suites: what is refused early, the day of training, system prompts first, and the numerics of answers."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from drafterforge.artifacts.staging import drop_staging, staging_folder
from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.compose import load_config
from drafterforge.config.evaluation import NEEDS, READERS, SUITES, SuiteConfig
from drafterforge.config.hints import typed_settings
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.data.prompts import Prompt
from drafterforge.data.questions import Question
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.evaluation import live_check, suites
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.evaluation.scaling import lengthen
from drafterforge.evaluation.suite_checks import check_suite
from drafterforge.evaluation.suites import Suite, prompts_identity
from drafterforge.pipelines.eval_vllm import open_cache
from drafterforge.runtime.rows import Generation
from tests.tiny import build_tokenizer

ROOT = Path(__file__).parents[2]
QUESTION = Question("q", "own", "", "sql", ("Why?",))


UNREAD = {  # what is typed -> the error
    "suite=domains suite.temperatures=[0.7]": "suite.temperatures= is read by suite=scaling|auto|vllm only, not by "
    "suite=domains; leave it out, or type suite.temperature=",
    "suite=quick suite.conversations=0.9": "read by suite=mixed|ood|auto only, not by suite=quick; leave it out",
    "suite=mixed suite.batch_sizes=[4]": "read by suite=scaling|auto|vllm only",
    "suite=papers suite.cell_prompts=4": "read by suite=auto only",
    "suite=auto suite.pool_sizes=[2]": "read by suite=scaling only",
    "suite=scaling suite.temperature=1": "not by suite=scaling; leave it out, or type suite.temperatures=",
    "suite=mixed suite.server_env={A:b}": "suite.server_env= is read by suite=vllm only",
    "suite=mixed suite.replay=false suite.selectors=[exp3]": "suite.selectors= is read with suite.replay=true only; "
    "type suite.replay=true, or leave it out",
    "suite=auto suite.check_live=true": "suite.check_live= is read with suite.replay=true only",
    "suite=auto suite.benchmarks=[gsm8k]": "suite.benchmarks= is read with suite.questions=FOLDER only",
    "suite=mixed suite.openvino=.": "suite.openvino= is read with suite.methods=[openvino] only",
    "suite=vllm suite.rounds=3": "suite.rounds= is read with suite.together=false only",
}


@pytest.mark.parametrize("typed", UNREAD)
def test_a_typed_key_that_the_suite_does_not_read_is_refused(typed):
    with pytest.raises(ConfigError, match=re.escape(UNREAD[typed])):
        load_config("eval", EvaluateConfig, typed.split())


def test_the_table_of_readers_names_keys_and_suites():
    keys = {entry.name for entry in dataclasses.fields(SuiteConfig)}
    assert READERS.keys() | NEEDS.keys() <= keys and {*SUITES} >= set().union(*READERS.values())
    assert not any(SuiteConfig().reads(key) for key, suites in READERS.items() if "mixed" not in suites)
    for name in SUITES:  # what a suite's file sets is typed again where it differs
        cfg = load_config("eval", EvaluateConfig, [f"suite={name}", "experiment=smoke"])
        assert load_config("eval", EvaluateConfig, shlex.split(typed_settings(cfg))).suite.name == name


@pytest.mark.parametrize("name", ["hf_generate", "hf_prompt_lookup", "openvino"])
def test_cells_refuse_programs_that_decode_one_request_at_a_time(name):
    suite = SuiteConfig(name="auto", methods=["auto"], cell_methods=["auto", name])
    with pytest.raises(ConfigError, match=f"suite.cell_methods has {name}, another program"):
        check_suite(EvaluateConfig(suite=suite, pool=PoolConfig(drafters=["general"])))


def test_measured_prompts_have_the_day_of_training():
    """Templates that print the day would give other prompts than those that the drafters were trained on."""
    files = [*(ROOT / "drafterforge" / "evaluation").glob("*.py"), *(ROOT / "pipelines").glob("*.py")]
    calls = [
        (file.name, node)
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "prompt_ids"
    ]
    assert len(calls) > 5
    for file, call in calls:
        assert [ast.unparse(key.value) for key in call.keywords if key.arg == "date"] == ["DATE"], file


def test_a_system_prompt_stays_before_the_turns_that_lengthen_a_request():
    tokenizer = build_tokenizer()
    target = SimpleNamespace(tokenizer=tokenizer, max_positions=4000)
    turns = [Prompt("p", "sql", "t", ({"role": "user", "content": "Earlier?"},), "test")]
    suite = SimpleNamespace(
        cfg=EvaluateConfig(),
        target=target,
        prompts=lambda count, seed: {"sql": turns},
        answers=lambda requests, title, part: [Generation([1], text="Yes.") for _ in requests],
    )
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Now?"}]
    (longer,) = lengthen(suite, [Request([1, 2], "sql", messages=messages)], 500)
    contents = [part.partition("\n")[2] for part in tokenizer.decode(longer.tokens).split("<|im_start|>")]
    assert [content.removesuffix("<|im_end|>\n") for content in contents[1:-1]] == [
        "Be brief.", "Earlier?", "Yes.", "Now?",
    ]  # fmt: skip


def test_answers_are_decoded_in_the_numerics_of_the_run(monkeypatch, tmp_path):
    numerics = []

    class Engine:
        def __init__(self, *_, **options):
            numerics.append(options["numerics"])

        def generate(self, prompts, *_):
            return [Generation(prompt, [1]) for prompt in prompts]

    monkeypatch.setattr(suites, "Engine", Engine)
    monkeypatch.setattr(live_check, "Engine", Engine)
    monkeypatch.setattr(live_check, "Pool", lambda *_, **__: None)
    cfg = EvaluateConfig(runtime=RuntimeConfig(numerics="invariant"))
    Suite(cfg, None, ResumeCache(tmp_path)).answers([Request([1], "sql")], "", "part")
    pool = SimpleNamespace(drafters={"sql": None}, shapes={}, router=None, options={})
    factory = SimpleNamespace(target=None, shape=None)
    live_check._engines(SimpleNamespace(pool=pool, factory=factory, cfg=cfg))
    assert numerics == ["invariant"] * 3


def served(**changes: object) -> EvaluateConfig:
    return EvaluateConfig(suite=SuiteConfig(name="vllm", replay=False, check_live=False), **changes)


def test_measured_rounds_of_other_questions_are_not_deleted_without_being_asked(tmp_path):
    path = tmp_path / "vllm"
    sources = prompts_identity(served(), [QUESTION])
    changed = prompts_identity(served(), [Question("q", "own", "", "sql", ("How?",))])
    open_cache(served(), path, sources)
    folder = staging_folder(path)
    (folder / "vllm-pool.log").write_text("a server that did not start")
    open_cache(served(), path, changed)  # no answer was measured
    (folder / "round.parquet").write_text("answers")
    with pytest.raises(ArtifactError, match=r"\(questions: .*overwrite=true to delete it, or name=OTHER"):
        open_cache(served(), path, sources)
    open_cache(served(), path, changed)
    assert (folder / "round.parquet").exists()
    open_cache(served(overwrite=True), path, sources)
    assert not (folder / "round.parquet").exists()
    drop_staging(path)
