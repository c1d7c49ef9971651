"""Law 6: vLLM decodes with an exported drafter, cycle by cycle, what our own chain decoding does."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from drafterforge.artifacts.locate import SHIPPED
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.checkpoint import load_drafter
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.interop.layout import read_target
from drafterforge.interop.vllm import write_vllm
from drafterforge.runtime.batch import Generation
from tests.bundle.builders import edit
from tests.external.conftest import DEPTH, MAX_TOKENS, Client, chains, with_norms
from tests.models import NORMS

pytestmark = pytest.mark.external
PORT = 18765


@pytest.fixture(scope="module")
def vllm() -> Client:
    return Client("vllm").require()


def preload(client: Client) -> dict[str, str]:
    """vLLM's CPU build asks for its own OpenMP."""
    return {"LD_PRELOAD": str(client.folder / "lib" / "libiomp5.so"), "VLLM_CPU_OMP_THREADS_BIND": "1"}


def decode(client: Client, target: Path, drafter: Path, prompts: Path, stop_ids, folder: Path) -> dict:
    out = folder / "found.json"
    given = ("--target", target, "--drafter", drafter, "--prompts", prompts, "--out", out)
    more = ("--depth", DEPTH, "--max-tokens", MAX_TOKENS, "--stop-ids", *stop_ids)
    client.run("vllm_cycles.py", *given, *more, log=folder / "vllm.log", **preload(client))
    return json.loads(out.read_text())


def per_position(accepted: list[list[int]]) -> list[int]:
    """How many cycles accepted the drafted token of each position."""
    return [sum(count > place for cycles in accepted for count in cycles) for place in range(DEPTH)]


def compare(ours: list[Generation], theirs: list[dict]) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Accepted counts of all whole cycles, ours and vLLM's, and vLLM's of cycles that an end token cut.

    vLLM counts what a cycle accepted before it cuts the answer.  At the limit of tokens our longer answer has the
    whole cycle; behind an end token it has not.
    """
    full, found, cut = [], [], []
    for answer, their in zip(ours, theirs, strict=True):
        assert answer.tokens[:MAX_TOKENS] == their["tokens"]
        accepted, cycles = list(their["accepted"]), [cycle.accepted for cycle in answer.cycles]
        if their["finish"] == "stop":
            assert len(cycles) == len(accepted) and cycles.pop() <= accepted[-1]
            cut.append(accepted.pop())
        assert set(their["drafted"]) == {DEPTH}
        full.append(cycles[: len(accepted)])
        found.append(accepted)
    return full, found, cut


@pytest.mark.parametrize("layout", ["speculators", "plain"])
@pytest.mark.parametrize("name", ["general", "sql"])
def test_every_cycle_accepts_what_ours_does(
    vllm, real, exported, ours, prompt_file, tmp_path, record_property, name, layout
):
    folder = exported(name, "vllm", layout)
    theirs = decode(vllm, real.folder, folder, prompt_file, sorted(real.eos_ids), tmp_path)
    full, found, cut = compare(ours(name), theirs["answers"])
    assert found == full
    assert sum(map(len, full)) > 150 and per_position(full)[-1] > 20  # it says something
    counted = theirs["counters"]
    assert counted["num_accepted_tokens_per_pos"] == per_position([*found, cut])
    assert counted["num_drafts"] == [sum(map(len, found)) + len(cut)]
    assert cut  # the prompt with a short answer
    told = {"cycles": sum(map(len, full)), "per_position": per_position(full), "cut": cut}
    record_property(f"vllm {theirs['version']} {name} {layout}", json.dumps(told))
    print(f"vLLM {theirs['version']}, {name}, {layout}: {told}, ours {per_position(full)}")


def test_every_cycle_of_a_drafter_with_the_norms_of_eagle_3_1_accepts_what_ours_does(
    vllm, real, text, prompts, prompt_file, tmp_path
):
    facts = read_target(TargetConfig())
    plain = load_drafter(SHIPPED / "smollm2-135m" / "drafters" / "general", facts.embedding.float())
    drafter = with_norms(plain, text[0], NORMS["EAGLE-3.1"])
    write_vllm(tmp_path, drafter, facts, tmp_path)
    theirs = decode(vllm, real.folder, tmp_path, prompt_file, sorted(real.eos_ids), tmp_path)

    def cycles_with(norms: dict[str, bool]) -> list[Generation]:
        drafter = with_norms(plain, text[0], norms)
        return chains(real, FusedDrafter(drafter, real.backbone.embedding), prompts)

    full, found, _ = compare(cycles_with(NORMS["EAGLE-3.1"]), theirs["answers"])
    assert found == full and sum(map(len, full)) > 150
    for name in ("fc_norm", "norm_output"):  # it says something: with one of them alone other tokens are accepted
        assert [[cycle.accepted for cycle in answer.cycles] for answer in cycles_with(NORMS[name])] != full
    print(f"vLLM {theirs['version']}, EAGLE-3.1: {sum(map(len, full))} cycles, {per_position(full)}")


def test_layers_one_too_far_are_found_out(vllm, real, exported, ours, prompt_file, tmp_path):
    """The comparison can fail: with the inputs of the layers behind, texts are the same and counts are not."""
    shutil.copytree(exported("general", "vllm", "plain"), tmp_path / "shifted")
    edit(tmp_path / "shifted", eagle_aux_hidden_state_layer_ids=[3, 16, 28])
    theirs = decode(vllm, real.folder, tmp_path / "shifted", prompt_file, sorted(real.eos_ids), tmp_path)
    assert [answer.tokens[:MAX_TOKENS] for answer in ours("general")] == [one["tokens"] for one in theirs["answers"]]
    cycles = [[cycle.accepted for cycle in answer.cycles] for answer in ours("general")]
    assert cycles != [one["accepted"] for one in theirs["answers"]]
    assert theirs["counters"]["num_accepted_tokens_per_pos"] != per_position(cycles)


@contextmanager
def server(client: Client, command: str, log: Path):
    """The printed command, with what a small machine needs besides."""
    words = shlex.split(command)
    assert words[0] == "vllm"
    small = f"--port {PORT} --max-model-len 1024 --max-num-seqs 1 --enforce-eager".split()
    env = client.env(VLLM_CPU_KVCACHE_SPACE="1", **preload(client))
    with open(log, "w") as output:
        process = subprocess.Popen(
            [client.folder / "bin" / "vllm", *words[1:], *small], stdout=output, stderr=output, env=env
        )
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"http://localhost:{PORT}/health", timeout=5)
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"{command} does not serve: {log.read_text()[-3000:]}")
                time.sleep(1)
        yield f"http://localhost:{PORT}"
    finally:
        process.terminate()
        process.wait(60)


def test_the_printed_command_serves_with_the_drafter(vllm, real, exported, ours, prompts, tmp_path):
    command = exported("sql", "vllm").with_suffix(".command").read_text()
    with server(vllm, command, tmp_path / "serve.log") as url:
        model = json.load(urllib.request.urlopen(f"{url}/v1/models"))["data"][0]["id"]
        asked = {"model": model, "prompt": prompts[0], "max_tokens": MAX_TOKENS, "temperature": 0}
        request = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps({**asked, "return_token_ids": True}).encode(),
            {"Content-Type": "application/json"},
        )
        answer = json.load(urllib.request.urlopen(request))["choices"][0]
        shown = urllib.request.urlopen(f"{url}/metrics").read().decode().splitlines()
    expected = ours("sql")[0]
    assert answer["token_ids"] == expected.tokens[:MAX_TOKENS]
    counted = [line for line in shown if line.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total")]
    emitted = num_cycles = 0
    while emitted < MAX_TOKENS - 1:  # the first token comes from the prefill
        emitted += expected.cycles[num_cycles].accept_length
        num_cycles += 1
    expectation = per_position([[cycle.accepted for cycle in expected.cycles[:num_cycles]]])
    assert [round(float(line.split()[-1])) for line in counted] == expectation
