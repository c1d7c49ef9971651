"""OpenMP's threads spin briefly, unless the user has decided otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from drafterforge.openmp import NAME, SETTINGS, SPIN_COUNT, limit_spinning


def test_spinning_is_limited_where_nothing_is_set():
    environ = {}
    assert limit_spinning(environ, openmp_is_loaded=False).describe() == f"{NAME}={SPIN_COUNT}"
    assert environ == {NAME: SPIN_COUNT}


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("setting", [("OMP_WAIT_POLICY", "ACTIVE"), ("GOMP_SPINCOUNT", "7")])
def test_what_the_user_has_set_stays(setting, loaded):
    environ = dict([setting])
    described = limit_spinning(environ, loaded).describe()
    assert environ == dict([setting])
    assert described == "=".join(setting) + " from the environment"


def test_a_library_that_is_loaded_is_too_late_and_doctor_says_so():
    environ = {}
    waiting = limit_spinning(environ, openmp_is_loaded=True)
    assert environ == {} and waiting.too_late
    assert "torch was loaded before drafterforge" in waiting.describe() and NAME in waiting.describe()


@pytest.mark.parametrize(("first", "too_late"), [("drafterforge", False), ("torch", True)])
def test_the_package_decides_only_if_it_comes_before_torch(first, too_late):
    code = f"import {first}, os; from drafterforge.openmp import WAIT_POLICY, NAME, warn_if_too_late; "
    code += "print(WAIT_POLICY.too_late, os.environ.get(NAME)); warn_if_too_late()"
    environ = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    printed = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    if sys.platform == "linux":
        assert printed.stdout.split() == [str(too_late), "None" if too_late else SPIN_COUNT]
        assert ("torch was imported before drafterforge" in printed.stderr) == too_late
