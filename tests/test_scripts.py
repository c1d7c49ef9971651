"""Every script can be started, and every benchmark explains its options and figures."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = sorted(path for path in Path(__file__).parents[1].joinpath("scripts").glob("*.py"))

BENCHES = [path for path in SCRIPTS if path.stem.startswith("bench_") and "ArgumentParser" in path.read_text()]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_finds_what_it_imports(path, monkeypatch):
    import_script(path, monkeypatch)


@pytest.mark.parametrize("path", BENCHES, ids=lambda path: path.stem)
def test_the_help_of_a_benchmark_explains_its_options_and_names_its_figures(path, monkeypatch, capsys):
    module = import_script(path, monkeypatch)
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    with pytest.raises(SystemExit) as stopped:
        module.main()
    printed = capsys.readouterr().out
    assert stopped.value.code == 0 and "\nFigures" in printed
    tree = ast.parse(path.read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    options = [call for call in calls if call.func.attr == "add_argument"]
    assert options and all("help" in [keyword.arg for keyword in option.keywords] for option in options)
    assert [name for name in figures_of(tree) if name not in printed] == []


def figures_of(tree: ast.Module) -> list[str]:
    """The literal keys that a script writes to its `figures`."""
    names = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AugAssign):
            continue
        assigned = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if ast.unparse(assigned) == "figures" and isinstance(node.value, ast.Dict):
            names += [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
        elif ast.unparse(assigned).startswith("figures['"):
            names.append(assigned.slice.value)
    return names


def import_script(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module
