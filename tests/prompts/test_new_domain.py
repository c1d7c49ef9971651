"""A domain with a grammar is one data file and one YAML: those of docs/extending.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from drafterforge.config.commands import PrepareDataConfig
from drafterforge.config.compose import load_config
from drafterforge.config.data import POOL_DOMAINS, DataConfig, DomainConfig
from drafterforge.data.prompts import load_prompts
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.prompts.domains import domains

ROOT = Path(__file__).parents[2]
EXTENDING = (ROOT / "docs" / "extending.md").read_text()
README = (ROOT / "drafterforge" / "prompts" / "README.md").read_text()
GRAMMAR, DOMAIN = (
    textwrap.dedent(block) for block in re.findall(r"^    ```yaml\n(.*?)^    ```", EXTENDING, re.MULTILINE | re.DOTALL)
)
LOOK = """
import json
from drafterforge.config.compose import load_config
from drafterforge.config.commands import EvaluateConfig, PrepareDataConfig
from drafterforge.data.prompts import load_prompts
def config(*typed):
    few = ("data.num_train=40", "data.num_val=4", "data.num_test=4")
    return load_config("prepare_data", PrepareDataConfig, [*typed, *few])
def texts(prompts):
    return {split: [prompt.messages[0]["content"] for prompt in prompts[split]] for split in prompts}
shop, general = config("domain=shop"), config("domain=general", "domain.weights.shop=3")
print(json.dumps({
    "prompts": texts(load_prompts(shop.data, shop.domain, 0)),
    "mixed": sorted({p.domain for p in load_prompts(general.data, general.domain, 0)["train"]}),
    "weights": general.domain.weights,
    "measured": load_config("eval", EvaluateConfig, ["suite=domains"]).suite.domains,
}))
"""


@pytest.fixture
def grammar_file(tmp_path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(GRAMMAR)
    return path


def test_two_files_make_a_domain_that_every_list_knows(tmp_path):
    package = tmp_path / "drafterforge"
    shutil.copytree(ROOT / "drafterforge", package, ignore=shutil.ignore_patterns("shipped", "__pycache__"))
    for folder in ("pipelines", "configs"):
        shutil.copytree(ROOT / folder, package / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "prompts" / "grammars" / "shop.yaml").write_text(GRAMMAR)
    (package / "configs" / "domain" / "shop.yaml").write_text(DOMAIN)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    code = f"import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n{LOOK}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert {split: len(texts) for split, texts in seen["prompts"].items()} == {"train": 40, "val": 4, "test": 4}
    assert all("bike" in text for texts in seen["prompts"].values() for text in texts)
    assert seen["weights"] == dict.fromkeys(POOL_DOMAINS, 1.0) | {"shop": 3.0}
    assert seen["mixed"] == sorted((*POOL_DOMAINS, "shop"))
    assert seen["measured"] == [*POOL_DOMAINS, "shop"]


def test_a_grammar_outside_the_package_is_drawn_from_by_its_path(grammar_file):
    data = DataConfig(path=str(grammar_file), num_train=60, num_val=5, num_test=5)
    prompts = load_prompts(data, DomainConfig(**yaml.safe_load(DOMAIN)), seed=0)
    assert {split: len(prompts[split]) for split in prompts} == {"train": 60, "val": 5, "test": 5}
    tasks = [{prompt.task for prompt in prompts[split]} for split in prompts]
    assert sum(map(len, tasks)) == len(set.union(*tasks))
    assert prompts["val"][0].id == "shop-val-00000" and prompts == load_prompts(data, DomainConfig(name="shop"), seed=0)


def test_a_grammar_of_few_tasks_has_a_task_in_each_split(tmp_path):
    path = tmp_path / "shop.yaml"
    path.write_text(re.search(r"```yaml\n(.*?)```", README, re.DOTALL)[1])
    data = DataConfig(path=str(path), num_train=20, num_val=5, num_test=5)
    prompts = load_prompts(data, DomainConfig(name="shop"), seed=0)
    tasks = {split: {prompt.task for prompt in prompts[split]} for split in prompts}
    assert sorted(map(len, tasks.values())) == [1, 1, 2] and len(set.union(*tasks.values())) == 4
    assert prompts == load_prompts(data, DomainConfig(name="shop"), seed=0)


def test_a_grammar_of_two_tasks_is_refused(tmp_path):
    path = tmp_path / "shop.yaml"
    path.write_text(
        "lists: {bikes: [red, blue]}\ntasks:\n- task: '{bike}'\n  for: {bike: bikes}\n  asks: ['A {bike} bike?']\n"
    )
    with pytest.raises(ArtifactError, match=r"shop.yaml has no .* prompts: .* at least one task each.*; add tasks"):
        load_prompts(DataConfig(path=str(path)), DomainConfig(name="shop"), seed=0)


def test_the_path_of_a_grammar_can_be_typed(grammar_file):
    config = load_config(
        "prepare_data", PrepareDataConfig, ["domain=sql", f"path={grammar_file}", "name=shop", "data.num_train=30"]
    )
    assert len(load_prompts(config.data, config.domain, 0)["train"]) == 30


def test_a_path_that_is_no_grammar_is_refused(grammar_file):
    with pytest.raises(ConfigError, match="if it holds prompts, add data=jsonl"):
        DataConfig(path="prompts.jsonl")
    with pytest.raises(ConfigError, match="mixes several"):
        load_prompts(DataConfig(path=str(grammar_file)), DomainConfig(name="general", weights={"sql": 1.0}), 0)


def test_every_domain_with_a_grammar_has_a_yaml():
    for domain in domains():
        assert yaml.safe_load((ROOT / "configs" / "domain" / f"{domain}.yaml").read_text())["name"] == domain
    assert len(domains()) == 8
