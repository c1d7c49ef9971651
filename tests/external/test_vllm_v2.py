"""vLLM's V2 runner, in Triton's interpreter on a CPU, decodes with a pool as V1 does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from drafterforge.cli import main
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.evaluation.held_out import held_out_prompts
from tests.external.conftest import DEPTH, MAX_TOKENS, Client
from tests.external.test_vllm import preload

pytestmark = pytest.mark.external
NAMES, PROMPTS = ["general", "sql", "chat", "python"], 5
V1, V2 = "vllm_cycles.py", "vllm_v2_cycles.py"


@pytest.fixture(scope="module")
def decode(real, tmp_path_factory) -> Callable[..., list[dict]]:
    """Answers of vLLM, and accepted tokens of their cycles, by a script and its further arguments."""
    vllm, folder = Client("vllm").require_plugin(), tmp_path_factory.mktemp("v2")
    prompts = folder / "ids.json"
    prompts.write_text(json.dumps(held_out_prompts(real, PROMPTS, POOL_DOMAINS)))
    main(["export", "format=vllm-pool", "bundle=served", f"pool.drafters=[{','.join(NAMES)}]", f"runs_dir={folder}"])
    pool: Path = next(folder.glob("*/exports/served-vllm-pool"))

    def run(script: str, *more: object, drafts: bool = True) -> list[dict]:
        out = folder / "out.json"
        arguments = ["--target", real.folder, "--prompts", prompts, "--out", out, "--at-a-time", 3]
        arguments += ["--depth", DEPTH, "--max-tokens", MAX_TOKENS, "--stop-ids", *sorted(real.eos_ids), *more]
        if drafts:
            arguments += ["--drafter", pool, "--settings", json.dumps({"adaptive": False})]
        vllm.run(script, *arguments, log=folder / "vllm.log", **preload(vllm))
        if script == V2:
            assert "Using V2 Model Runner" in (folder / "vllm.log").read_text()
        return json.loads(out.read_text())["answers"]

    return run


def test_both_runners_choose_and_accept_alike(decode):
    first, second, plain = decode(V1), decode(V2), decode(V1, drafts=False)
    assert [answer["accepted"] for answer in first] == [answer["accepted"] for answer in second]
    assert sum(len(answer["accepted"]) for answer in first) > 50
    assert [answer["tokens"] for answer in second] == [answer["tokens"] for answer in plain]


def test_both_runners_follow_hints(decode):
    first, second = decode(V1, "--hint", "sql"), decode(V2, "--hint", "sql")
    assert [answer["accepted"] for answer in first] == [answer["accepted"] for answer in second]


def test_preempted_requests_go_on_alike(decode):
    limits = {"num_gpu_blocks_override": 5, "max_model_len": 384, "enable_prefix_caching": True}
    more = ("--max-tokens", 150, "--engine", json.dumps(limits))
    first, second = decode(V1, *more), decode(V2, *more)
    assert [answer["accepted"] for answer in first] == [answer["accepted"] for answer in second]
