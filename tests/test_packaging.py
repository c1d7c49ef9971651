"""The checkout's three folders and the installed package stay one thing."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import drafterforge

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~\[; ]", requirement)[0].lower().replace("_", "-")


def test_every_package_folder_is_listed():
    setuptools = PROJECT["tool"]["setuptools"]
    on_disk = {
        ".".join([name, *init.parent.relative_to(ROOT / folder).parts])
        for name, folder in setuptools["package-dir"].items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert set(setuptools["packages"]) == on_disk


def test_every_folder_with_modules_is_a_package():
    folders = {
        module.parent
        for folder in PROJECT["tool"]["setuptools"]["package-dir"].values()
        for module in (ROOT / folder).rglob("*.py")
    }
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_data_file_is_shipped_with_its_package():
    shipped = {
        path
        for package, patterns in PROJECT["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    kinds = ("json", "safetensors", "c", "h", "yaml", "typed")
    files = {path for kind in kinds for path in (ROOT / "drafterforge").rglob(f"*.{kind}")}
    assert files == {path for path in shipped if path.suffix != ".md"}


def test_configs_hold_nothing_but_yaml_latency_profiles_and_one_docstring():
    files = [path for path in (ROOT / "configs").rglob("*") if path.is_file()]
    profiles = set((ROOT / "configs" / "latency").glob("*.json"))
    names = {p.name for p in files if p.suffix not in (".yaml", ".pyc") and p not in profiles}
    assert names == {"__init__.py"}


def test_version_is_stated_once_and_the_same():
    assert PROJECT["project"]["version"] == drafterforge.__version__ == version("drafterforge")


def test_every_direct_dependency_is_pinned():
    pinned = {_name(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    extras = PROJECT["project"]["optional-dependencies"].values()
    dependencies = {_name(r) for group in (PROJECT["project"]["dependencies"], *extras) for r in group}
    assert dependencies - pinned == {"vllm"}  # in an environment of its own, with its own pins


@pytest.mark.parametrize(
    "script",
    ["scripts/setup", "scripts/chromium", "scripts/test", "scripts/quickstart", "scripts/clients_env", ".ci/run"],
)
def test_scripts_are_executable(script):
    assert (ROOT / script).stat().st_mode & 0o111
    assert (ROOT / script).read_text().startswith("#!/usr/bin/env bash")


def test_every_import_is_a_declared_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.match(r"[\w-]+", line)[0].lower().replace("-", "_") for line in project["dependencies"]}
    declared |= {"drafterforge", "yaml"}  # pyyaml
    declared |= {"hydra"}  # hydra-core
    serving = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in project["optional-dependencies"]["serve"]}
    serving |= {"pydantic", "pydantic_core", "starlette"}  # FastAPI is made of them
    extras = project["optional-dependencies"]
    peers = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in extras["openvino"] + extras["flashspec"]}
    peers |= {"openvino"}  # which it needs itself
    for path in (*(ROOT / "drafterforge").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")):
        imported = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.split(".")[0])
        here = declared | (serving if path.parent.name == "server" else set())
        here |= peers if path.name == "other_engines.py" else set()
        here |= {"vllm", "prometheus_client"} if path.parent.name == "vllm" else set()  # loaded by vLLM alone
        here |= {"sglang"} if path.parent.name == "sglang" else set()  # loaded by SGLang alone
        here |= {"triton"} if path.name.startswith("triton_") else set()  # comes with torch where there is a GPU
        assert imported - here - sys.stdlib_module_names == set(), path
