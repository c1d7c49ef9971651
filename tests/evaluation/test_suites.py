"""Prompts of suites: what is refused early, the day of training, system prompts first, and the numerics of answers."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from drafterforge.artifacts.staging import drop_staging, staging_folder
from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.evaluation import SuiteConfig
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
    with pytest.raises(ArtifactError, match=r"\(questions: .*type overwrite=true to delete it, or name=OTHER"):
        open_cache(served(), path, sources)
    open_cache(served(), path, changed)
    assert (folder / "round.parquet").exists()
    open_cache(served(overwrite=True), path, sources)
    assert not (folder / "round.parquet").exists()
    drop_staging(path)
