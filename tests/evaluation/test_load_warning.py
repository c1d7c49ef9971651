"""A machine that is busier than its cores is reported; an idle one is not."""

from __future__ import annotations

import pytest

from drafterforge.evaluation import load_warning as module
from drafterforge.evaluation.load_warning import current_warning, load_warning, warn_if_busy


@pytest.mark.parametrize(
    ("other_cores", "threads", "cores", "warns"),
    [
        (0.0, 2, 2, False),
        (0.4, 2, 2, False),
        (0.6, 2, 2, True),
        (2.0, 2, 2, True),
        (1.0, 1, 2, False),
        (1.5, 1, 2, True),
        (8.0, 8, 16, False),
        (9.0, 8, 16, True),
    ],
)
def test_a_warning_needs_more_work_than_cores(other_cores, threads, cores, warns):
    line = load_warning(other_cores, threads, cores)
    assert (line is not None) == warns
    if warns:
        assert "\n" not in line and f"{other_cores:.1f} of {cores} cores" in line


@pytest.mark.parametrize(
    ("other_cores", "load_average", "warns"), [(1.5, 0, True), (0.1, 9, False), (None, 3.0, True), (None, 1.2, False)]
)
def test_the_load_average_decides_only_where_cores_are_not_counted(other_cores, load_average, warns, monkeypatch):
    class Load:
        def other_cores(self):
            return other_cores

    monkeypatch.setattr(module, "MachineLoad", Load)
    monkeypatch.setattr(module, "SAMPLE_S", 0)
    monkeypatch.setattr(module.os, "getloadavg", lambda: (load_average, 0.0, 0.0), raising=False)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(module.torch, "get_num_threads", lambda: 2)
    assert (current_warning() is not None) == warns


@pytest.mark.parametrize("line", ["warning: other programs use 2.0 of 2 cores", None])
def test_the_warning_is_printed_once_or_not_at_all(line, monkeypatch, capsys):
    monkeypatch.setattr(module, "current_warning", lambda: line)
    warn_if_busy()
    assert capsys.readouterr().err == (f"{line}\n" if line else "")
