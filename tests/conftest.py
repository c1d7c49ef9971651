"""Every test runs on one thread-count and one seed.

Light to import: the process that hands out tests loads this file too, and no test's heavy libraries.
"""

from __future__ import annotations

import copy
import gc
import os
import shutil
from collections import Counter
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from drafterforge.drafters.eagle3.model import Eagle3Drafter
    from drafterforge.targets.load import Target

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # of the programs, too, that tests start
if not shutil.which("nvidia-smi"):
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when a library imports it


if "PYTEST_XDIST_WORKER" in os.environ:
    gc.disable()  # until all tests are imported, which leaves no garbage


def pytest_collection_finish() -> None:
    gc.freeze()  # thousands of tests, which the collector need not walk through
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`quick_cases(n)`: of one test's cases, those after the first n are slow."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("quick_cases")
        if mark:
            case = item.nodeid.split("[")[0]
            seen[case] += 1
            if seen[case] > mark.args[0]:
                item.add_marker("slow")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random state."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny tensors: a second thread only waits.  Seeds do not go to absent devices, which format the stack for them."""
    import torch

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for device in (torch.cuda, torch.xpu):
            if not device.is_available():
                patch.setattr(device, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def frozen_once():
    """Servers leave the frozen tests to `pytest_collection_finish`: to collect beside them takes a second."""
    from drafterforge.server import worker

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "gc", SimpleNamespace(**dict.fromkeys(("collect", "freeze", "unfreeze"), lambda: None)))
        yield


@pytest.fixture(scope="session", autouse=True)
def composed_once():
    """Hydra and YAML take longer than a tiny training: equal choices are composed once, and files are read once."""
    from drafterforge.config import catalogue
    from drafterforge.config import compose as load

    real, configs, read = load._compose, {}, cache(catalogue._yaml)

    def compose(name, config_class, choices):
        key = (name, *sorted(choices.items()))
        if key not in configs:
            configs[key] = real(name, config_class, choices)
        return copy.deepcopy(configs[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_compose", compose)
        patch.setattr(catalogue, "_yaml", lambda path: copy.deepcopy(read(path)))
        yield


@pytest.fixture
def target() -> Target:
    """A tiny Llama."""
    from tests.models import tiny_target

    return tiny_target()


@pytest.fixture
def drafter(target: Target) -> Eagle3Drafter:
    """A random drafter for the tiny Llama."""
    from tests.models import tiny_drafter

    return tiny_drafter(target)
