"""vLLM decodes with our pools: greedy answers equal its own, and a fixed choice accepts what our chain accepts."""

from __future__ import annotations

import json
import shlex
import subprocess
import urllib.request
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from drafterforge.bundle.archive import pack
from drafterforge.cli import main
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.evaluation.held_out import held_out_prompts
from drafterforge.evaluation.vllm_server import MISTAKE
from drafterforge.interop.vllm.pool_folder import serve_command
from tests.external.conftest import DEPTH, MAX_TOKENS, Client
from tests.external.test_vllm import compare, complete, preload, server

pytestmark = pytest.mark.external
NAMES = ["general", "sql", "chat", "python", "math"]
FIXED = {"adaptive": False}  # every cycle drafts all tokens
PROMPTS = 40


@pytest.fixture(scope="module")
def vllm() -> Client:
    return Client("vllm").require_plugin()


@pytest.fixture(scope="module")
def pool(tmp_path_factory, target_folder) -> Path:
    """A pool of five EAGLE-3 drafters and a datastore."""
    runs = tmp_path_factory.mktemp("runs")
    drafters = ",".join([*NAMES, "store"])
    main(["export", "format=vllm-pool", "bundle=served", f"pool.drafters=[{drafters}]", f"runs_dir={runs}"])
    return next(runs.glob("*/exports/served-vllm-pool"))


@pytest.fixture(scope="module", params=["folder", "tar"])
def bundle(request, pool, tmp_path_factory) -> Path:
    """The pool's bundle."""
    folder = pool.parents[1] / "bundles" / "served"
    if request.param == "folder":
        return folder
    archive = tmp_path_factory.mktemp("bundle") / "served.tar"
    pack(folder, archive)
    return archive


@pytest.fixture(scope="module")
def many(real, tmp_path_factory) -> Path:
    """File with the token ids of held-out prompts of the pool's domains."""
    ids = held_out_prompts(real, PROMPTS, POOL_DOMAINS)
    path = tmp_path_factory.mktemp("many") / "ids.json"
    path.write_text(json.dumps(ids))
    return path


@pytest.fixture(scope="module")
def decode(vllm, real, tmp_path_factory) -> Callable[..., dict]:
    """Decode a file of prompts in vLLM, once for the same arguments."""

    @cache
    def run(prompts: Path, drafter: Path | None, settings: str = "{}", *more: object) -> dict:
        folder = tmp_path_factory.mktemp("decoded")
        arguments = ["--target", real.folder, "--prompts", prompts, "--out", folder / "out.json", *more]
        arguments += ["--depth", DEPTH, "--max-tokens", MAX_TOKENS, "--stop-ids", *sorted(real.eos_ids)]
        if drafter:
            arguments += ["--drafter", drafter, "--settings", settings]
        vllm.run("vllm_cycles.py", *arguments, log=folder / "vllm.log", **preload(vllm))
        return json.loads((folder / "out.json").read_text())

    return run


def tokens(run: dict) -> list[list[int]]:
    return [answer["tokens"] for answer in run["answers"]]


@pytest.mark.parametrize("at_a_time", [1, 8])
@pytest.mark.parametrize("drafter", ["", *NAMES, "store"])
def test_greedy_answers_equal_those_of_vllm_without_drafting(decode, pool, many, drafter, at_a_time):
    settings = json.dumps({"drafter": drafter} if drafter else {})
    plain = decode(many, None)
    assert tokens(decode(many, pool, settings, "--at-a-time", at_a_time)) == tokens(plain)
    assert sum(map(len, tokens(plain))) > PROMPTS * 20


@pytest.mark.parametrize("name", NAMES)
def test_a_fixed_drafter_accepts_in_every_cycle_what_our_chain_accepts(decode, pool, prompt_file, ours, name):
    theirs = decode(prompt_file, pool, json.dumps({"drafter": name} | FIXED))
    full, accepted, _ = compare(ours(name), theirs["answers"])
    assert accepted == full and sum(map(len, full)) > 150


@pytest.mark.parametrize("name", NAMES)
def test_a_fixed_drafter_accepts_in_every_cycle_what_its_export_accepts(decode, pool, many, exported, name):
    ours = decode(many, pool, json.dumps({"drafter": name} | FIXED))
    stock = decode(many, exported(name, "vllm", "plain"))
    assert [answer["accepted"] for answer in ours["answers"]] == [answer["accepted"] for answer in stock["answers"]]


def test_selecting_accepts_more_than_every_single_drafter(decode, pool, many, record_property):
    single = {name: decode(many, pool, json.dumps({"drafter": name} | FIXED))["accepted_per_cycle"] for name in NAMES}
    selected = decode(many, pool, json.dumps(FIXED))["accepted_per_cycle"]
    record_property("accepted tokens a cycle", json.dumps({**single, "pool": selected}))
    print({**single, "pool": selected})
    assert selected > max(single.values())


def test_ranks_that_share_the_target_choose_alike(decode, pool, prompt_file):
    ranks = json.dumps({"tensor_parallel_size": 3})  # three ranks share its 9 heads and 3 key heads
    alone, shared = (decode(prompt_file, pool, json.dumps(FIXED), *more) for more in ((), ("--engine", ranks)))
    assert alone["answers"] == shared["answers"]


def test_answers_of_the_targets_adapters_are_drafted_for(decode, real, pool, prompt_file, tmp_path):
    adapter = random_adapter(real, tmp_path / "adapter")
    adapted = decode(prompt_file, None, "{}", "--adapter", adapter, "--at-a-time", 4)
    drafted = decode(prompt_file, pool, "{}", "--adapter", adapter, "--at-a-time", 4)
    assert tokens(drafted) == tokens(adapted) != tokens(decode(prompt_file, None))
    assert sum(sum(answer["accepted"]) for answer in drafted["answers"]) > 50


def random_adapter(real, folder: Path) -> Path:
    """A LoRA adapter of the target that changes its answers."""
    model = AutoModelForCausalLM.from_pretrained(real.folder)
    torch.manual_seed(0)
    config = LoraConfig(r=8, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(folder)
    return folder


def test_a_bundle_decodes_as_its_pool_folder(decode, pool, bundle, prompt_file, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path))
    ours, theirs = (decode(prompt_file, model, json.dumps(FIXED))["answers"] for model in (bundle, pool))
    assert ours == theirs and sum(sum(answer["accepted"]) for answer in ours) > 50
    assert len(list(tmp_path.glob("vllm-pools/*/config.json"))) == 1


def test_a_bundle_is_served(vllm, real, decode, bundle, prompt_file, prompts, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path))
    with server(vllm, f"{serve_command(bundle, str(real.folder))} --dtype float32", tmp_path / "serve.log") as url:
        answers = [complete(url, prompt) for prompt in prompts]
        with urllib.request.urlopen(f"{url}/metrics") as response:
            metrics = response.read().decode()
    assert answers == tokens(decode(prompt_file, None)) and 'drafterforge_cycles_total{drafter="sql"}' in metrics


@pytest.mark.parametrize(
    ("settings", "drafting", "line"),
    [
        ({"selektor": "ucb1"}, {}, "additional_config.drafterforge has no key 'selektor'"),
        ({"record": "records"}, {"disable_padded_drafter_batch": True}, "record needs the padded drafter batch"),
    ],
)
def test_a_wrong_setting_ends_the_server_with_one_line(vllm, real, pool, settings, drafting, line):
    words = shlex.split(serve_command(pool, str(real.folder)))
    typed = words.index("--speculative-config") + 1
    words[typed] = json.dumps(json.loads(words[typed]) | drafting)
    words += ["--additional-config", json.dumps({"drafterforge": settings})]
    command = [vllm.folder / "bin" / "vllm", *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=vllm.env(**preload(vllm)))
    assert done.returncode == 2 and "Traceback" not in done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"{MISTAKE}{line}")


def test_a_hint_decodes_with_that_drafter_alone(decode, pool, many):
    hinted = decode(many, pool, json.dumps(FIXED), "--hint", "sql")
    fixed = decode(many, pool, json.dumps({"drafter": "sql"} | FIXED))
    assert [answer["accepted"] for answer in hinted["answers"]] == [answer["accepted"] for answer in fixed["answers"]]


@pytest.mark.parametrize("at_a_time", [1, 8])
def test_aborts_preemption_chunks_and_cached_prefixes_change_no_answer(vllm, real, pool, many, tmp_path, at_a_time):
    def run(*more: object, drafter: bool) -> dict:
        out = tmp_path / "out.json"
        arguments = ["--target", real.folder, "--prompts", many, "--out", out, *more]
        arguments += ["--drafter", pool, "--hints", *NAMES, "store"] if drafter else []
        vllm.run("vllm_stress.py", *arguments, log=tmp_path / "vllm.log", **preload(vllm))
        return json.loads(out.read_text())

    blocks = ["--blocks", 26] if at_a_time > 1 else []
    stressed = run("--at-a-time", at_a_time, *blocks, drafter=True)
    plain = dict(run("--at-a-time", 1, "--repeats", 1, "--requests", PROMPTS, drafter=False)["answers"])
    answers = stressed["answers"]
    assert len(answers) > 150 and all(tokens == plain[prompt] for prompt, tokens in answers)
    assert stressed["slots"] == stressed["texts"] == 0 and stressed["prefix_hits"] > 0
    assert stressed["preemptions"] > 0 or at_a_time == 1
    print({key: stressed[key] for key in ("preemptions", "prefix_hits")})


def test_sampled_tokens_follow_the_same_distribution_as_without_drafting(vllm, real, pool, prompts, tmp_path):
    """20,000 third tokens after the start of a request, at temperature 0.8, with the pool and plainly: chi-square."""
    from scipy.stats import chi2_contingency

    path = tmp_path / "ids.json"
    path.write_text(json.dumps([ids[24:32] for ids in prompts[:4]]))

    def sample(*more: object) -> list[dict[str, int]]:
        out = tmp_path / "out.json"
        arguments = ["--target", real.folder, "--prompts", path, "--out", out, "--samples", 5000, *more]
        vllm.run("vllm_samples.py", *arguments, log=tmp_path / "vllm.log", **preload(vllm))
        return json.loads(out.read_text())["counts"]

    for drawn, plain in zip(sample("--drafter", pool), sample(), strict=True):
        common = [name for name in {**drawn, **plain} if drawn.get(name, 0) + plain.get(name, 0) >= 20]
        table = [[counts.get(name, 0) for name in common] for counts in (drawn, plain)]
        for row, counts in zip(table, (drawn, plain), strict=True):
            row.append(sum(counts.values()) - sum(row))
        columns = [column for column in zip(*table, strict=True) if sum(column)]
        assert len(columns) > 20  # enough different tokens
        assert chi2_contingency(columns).pvalue > 0.01
