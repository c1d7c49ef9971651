"""No page of the site loads anything from another host."""

from __future__ import annotations

import importlib
import json
import re

import pytest
import yaml

from tests.test_docs import ROOT


@pytest.fixture
def hooks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("docs_hooks")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script src="https://cdn.example/x.js"></script>'),
        ("a.html", '<link rel="stylesheet" href="//fonts.example/x.css">'),
        ("a.html", '<img alt="" src="http://example.org/x.png">'),
        ("a.html", '<p style="background: url(https://example.org/x.png)">'),
        ("a.css", "@import 'https://example.org/x.css';"),
        ("a.svg", "<style>text { src: url(https://example.org/x.woff) }</style>"),
    ],
)
def test_a_page_that_loads_from_another_host_fails_the_build(hooks, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit, match=f"{name} loads .* from another host"):
        hooks.on_post_build({"site_dir": str(tmp_path)})


def test_links_to_other_hosts_and_files_of_the_site_are_fine(hooks, tmp_path):
    page = (
        '<a href="https://example.org">x</a><img src="figures/a.svg"><link rel="canonical" href="https://example.org">'
    )
    (tmp_path / "a.html").write_text(page)
    (tmp_path / "a.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    hooks.on_post_build({"site_dir": str(tmp_path)})


def test_the_site_has_every_page_and_our_check():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    files = re.findall(r"[\w-]+\.md", json.dumps(config["nav"]))
    assert sorted(files) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert config["strict"] and config["theme"]["font"] is False and config["hooks"] == ["scripts/docs_hooks.py"]
