"""The pool's totals reach `/metrics`: they add up, over processes too, and no file can break a scrape."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from drafterforge.interop.vllm.metrics import PoolCollector, PoolMeter, PoolTotals

NAMES = ["general", "sql", "chat"]
CPU = torch.device("cpu")
NEVER = 3600.0  # seconds between two writes


def count(meter: PoolMeter, choice: list[int], accepted: list[int], weights: list[float] | None = None) -> None:
    """A cycle in which three tokens were drafted for each request, and those with sql switched to it."""
    device = meter.device
    drafter = torch.tensor(choice, device=device)
    meter.cycle(
        drafter,
        torch.tensor(accepted, device=device),
        torch.full_like(drafter, 3),
        drafter == 1,
        None if weights is None else torch.tensor(weights, device=device),
        selection_s=0.25,
        cycle_s=2.0,
    )


def scrape(folder: Path) -> dict[str, float]:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(PoolCollector(folder))
    return figures(generate_latest(registry).decode())


def figures(text: str) -> dict[str, float]:
    """Values by `name` or `name/drafter`."""
    return {
        "/".join([sample.name.removeprefix("drafterforge_"), *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("drafterforge_")
    }


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def meter(request, tmp_path):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    meter = PoolMeter(NAMES, torch.device(request.param), tmp_path, NEVER)
    yield meter
    meter.close()


def test_cycles_and_tokens_add_up_by_drafter(meter, tmp_path):
    with torch.inference_mode():  # as in vLLM
        count(meter, [0, 1, 1, -1], [3, 2, 0, 9])
        count(meter, [1, 0], [1, 1], [0.5, 0.25, 0.25])
    meter.publish()
    totals = scrape(tmp_path)
    assert [totals[f"cycles_total/{name}"] for name in NAMES] == [2, 3, 0]
    assert [totals[f"accepted_tokens_total/{name}"] for name in NAMES] == [4, 3, 0]
    assert [totals[f"drafted_tokens_total/{name}"] for name in NAMES] == [6, 9, 0]
    assert [totals[f"weight/{name}"] for name in NAMES] == [0.5, 0.25, 0.25]
    assert totals["switches_total"] == 3
    assert (totals["selection_seconds_total"], totals["cycle_seconds_total"]) == (0.5, 4.0)


def test_a_cycle_never_waits_for_the_device(meter):
    if meter.device.type != "cuda":
        pytest.skip("needs a CUDA device")
    count(meter, [0, 1], [1, 1], [1.0, 0.0, 0.0])
    arguments = [torch.tensor([0, 1], device="cuda") for _ in range(3)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        meter.cycle(*arguments, arguments[0] == 1, None, 0.0, 0.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_rate_limit_delays_totals_but_loses_none(tmp_path):
    meter = PoolMeter(NAMES, CPU, tmp_path, interval_s=0.05)
    for _ in range(300):
        count(meter, [0, 2], [1, 2])
    deadline = time.monotonic() + 10
    while scrape(tmp_path).get("cycles_total/chat") != 300 and time.monotonic() < deadline:
        time.sleep(0.01)  # no further cycle is needed for the last totals
    assert scrape(tmp_path)["accepted_tokens_total/chat"] == 600
    meter.close()


def test_nothing_is_written_before_the_interval_and_the_rest_at_the_end(tmp_path):
    meter = PoolMeter(NAMES, CPU, tmp_path, NEVER)
    count(meter, [0], [1])
    assert list(tmp_path.iterdir()) == []
    meter.close()
    assert scrape(tmp_path)["cycles_total/general"] == 1


def test_files_of_several_engines_are_added_and_weights_averaged(tmp_path):
    for weights in ([1.0, 0.0, 0.0], [0.5, 0.5, 0.0], None):
        meter = PoolMeter(NAMES, CPU, tmp_path, NEVER)
        count(meter, [0, 1], [2, 1], weights)
        meter.close()
    totals = scrape(tmp_path)
    assert (totals["cycles_total/sql"], totals["accepted_tokens_total/general"]) == (3, 6)
    assert (totals["weight/general"], totals["weight/sql"], totals["switches_total"]) == (0.75, 0.25, 3)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"cycles": {}}', b"\xff\xfe"])
def test_a_broken_file_is_left_out(tmp_path, content):
    meter = PoolMeter(NAMES, CPU, tmp_path, NEVER)
    count(meter, [0], [2])
    meter.close()
    (tmp_path / "broken.json").write_bytes(content)
    assert PoolTotals.read(tmp_path / "broken.json") is None
    assert scrape(tmp_path)["accepted_tokens_total/general"] == 2


def test_serving_goes_on_without_the_folder(tmp_path):
    for folder in (tmp_path / "gone", None):
        meter = PoolMeter(NAMES, CPU, folder, NEVER)
        count(meter, [0], [2])
        meter.publish()
        meter.close()
    assert scrape(tmp_path / "gone")["switches_total"] == 0


SERVER = """
import multiprocessing, os, sys
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, multiprocess as prometheus
from drafterforge.interop.vllm.metrics import install, metrics_folder

def engine():
    import torch
    from drafterforge.interop.vllm.metrics import PoolMeter, install, metrics_folder
    install()
    meter = PoolMeter(["general"], torch.device("cpu"), metrics_folder(), 3600.0)
    ones = torch.ones(2, dtype=torch.long)
    meter.cycle(ones - 1, ones, ones, ones == 0, None, 0.0, 0.0)

if __name__ == "__main__":
    install()
    install()  # vLLM may call plug-ins again
    child = multiprocessing.get_context(sys.argv[1]).Process(target=engine)
    child.start()
    child.join()
    print(metrics_folder())
    registry = REGISTRY
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = CollectorRegistry()
        prometheus.MultiProcessCollector(registry)
    print(generate_latest(registry).decode())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "several_servers"), [("fork", True), ("spawn", False)])
def test_the_front_end_shows_what_a_child_process_counted(tmp_path, monkeypatch, method, several_servers):
    (tmp_path / "server.py").write_text(SERVER)
    monkeypatch.delenv("DRAFTERFORGE_METRICS_DIR", raising=False)
    if several_servers:
        (tmp_path / "prometheus").mkdir()
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "prometheus"))
    command = [sys.executable, str(tmp_path / "server.py"), method]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    folder, _, text = done.stdout.partition("\n")
    assert figures(text)["cycles_total/general"] == 2, done.stderr
    assert text.count("# TYPE drafterforge_cycles_total") == 1
    assert not Path(folder).exists()
