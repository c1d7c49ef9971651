"""Names say what a thing is: no participles as nouns, no pronouns, no metaphors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTICIPLES = "asked came chosen found given gone kept known lacking made meant merged said shown taken told wanted"
PRONOUNS = "both every it one other others own same stuff such them there these thing things those whole"
METAPHORS = "keeper laws place shelf shelves"
BANNED = frozenset(f"{PARTICIPLES} {PRONOUNS} {METAPHORS}".split())


def bindings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every variable, argument, attribute, function and class that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler) and node.name:
            yield node.lineno, node.name


def banned_names(path: Path) -> list[str]:
    rows = sorted(bindings(ast.parse(path.read_text())))
    return [f"{path.relative_to(ROOT)}:{line}: {name}" for line, name in rows if name.strip("_").lower() in BANNED]


def test_no_name_is_banned():
    paths = [
        path
        for folder in ("drafterforge", "pipelines", "scripts", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    lines = [line for path in paths for line in banned_names(path)]
    assert lines == [], "\n".join(["rename these to what they are:", *lines])


def test_all_kinds_of_names_are_checked(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(
        "class Keeper:\n  def told(self, one, *, x):\n    self.place = [same for same in x]\n    return x.found\n"
    )
    assert banned_names(path) == [
        f"module.py:{line}" for line in ("1: Keeper", "2: one", "2: told", "3: place", "3: same")
    ]
