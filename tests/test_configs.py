"""Every YAML composes into its command's typed config, and every key says what it means."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from drafterforge.artifacts.locate import SHIPPED
from drafterforge.artifacts.manifest import Manifest
from drafterforge.cli import COMMANDS
from drafterforge.config import catalogue
from drafterforge.config.compose import load_config, to_dict, to_yaml
from drafterforge.config.data import POOL_DOMAINS, DomainConfig
from drafterforge.config.drafter import DRAFTERS, DrafterConfig, register_drafter
from drafterforge.config.fields import setting
from drafterforge.config.renamed import with_present_keys
from drafterforge.config.variants import narrow, variants_of
from drafterforge.drafters.eagle3.train.job import recorded_config
from drafterforge.errors import ConfigError
from drafterforge.prompts.domains import domains
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.training.inputs import answer_settings, recorded_settings, weighted_domain
from drafterforge.training.loggers import settings_of

NEEDED = {  # what a user has to type along with a choice
    "data=jsonl": ["path=prompts.jsonl"],
    "data=recorded": ["path=recording"],
    "data=traffic": ["path=recording"],
    "target=hf": ["target.model=some/model"],
    "experiment=pool_smollm2_natural": ["data=jsonl", "path=prompts.jsonl"],
}

# mappings that are values
LEAVES = (
    "domain.weights",
    "data.domain_names",
    "data.vllm",
    "pool.options",
    "suite.server_env",
    "target.max_memory",
)


def _compose(command: str, *overrides: str):
    row = COMMANDS[command]
    groups = catalogue.command_groups(row.name)
    needed = NEEDED if "data" in groups else {"target=hf": NEEDED["target=hf"]}
    typed = [o for override in overrides for o in (override, *needed.get(override, []))]
    if "domain" in groups and not any("domain=" in o for o in typed):
        typed = ["domain=sql", *typed]
    if command == "quickstart":  # tunes by additions, which a recipe of frozen heads has to be told
        typed = [*typed, "drafter.head=own"]
    if command == "inspect":
        typed = ["path=runs", *typed]
    return load_config(row.name, row.config, typed)


FIRST = {group: command for command in reversed(COMMANDS) for group in catalogue.command_groups(COMMANDS[command].name)}
CHOICES = [  # a group says the same to all of its commands, so one is asked; an experiment does not
    (command, f"{group}={choice}")
    for command, row in COMMANDS.items()
    for group in catalogue.command_groups(row.name)
    for choice in catalogue.group_choices(group)
    if group == "experiment" or FIRST[group] == command
]
EXPERIMENTS = [
    (command, experiment)
    for command, row in COMMANDS.items()
    if "experiment" in catalogue.command_groups(row.name)
    for experiment in catalogue.group_choices("experiment")
]


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("command", COMMANDS)
def test_command_composes_and_survives_json_and_yaml(command):
    config = _compose(command)
    assert isinstance(config, COMMANDS[command].config)
    assert json.loads(json.dumps(to_dict(config))) == to_dict(config)
    assert yaml.safe_load(to_yaml(config)) == to_dict(config)


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize(("command", "choice"), CHOICES)
def test_every_choice_of_every_group_composes(command, choice):
    group, _, name = choice.partition("=")
    config = _compose(command, choice)
    if group in ("target", "domain") and name != "hf":
        assert getattr(config, group).name == name


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    ("command", "experiment", "choice"),
    [
        (command, experiment, choice)
        for command, experiment in EXPERIMENTS
        for choice in ("data=jsonl", "data=hf", "target=hf")
        if choice.partition("=")[0] in catalogue.command_groups(COMMANDS[command].name)
        and (choice, experiment) != ("data=hf", "pool_smollm2_natural")
        and (choice != "target=hf" or experiment == "smoke")  # recipes say nothing of targets
    ],
)
def test_every_experiment_composes_with_other_sources(command, experiment, choice):
    _compose(command, f"experiment={experiment}", choice)


def test_the_natural_prompts_recipe_is_for_jsonl_and_calls_domains_as_we_do():
    natural = "experiment=pool_smollm2_natural"
    config = _compose("prepare-data", "domain=general", natural)
    assert config.data.domain_names == {"code": "python", "clinical": "medical"} and config.data.licences
    for data in ("data=grammar", "data=hf"):
        with pytest.raises(ConfigError, match=r"read by data=jsonl only.*type data=jsonl path=FILE"):
            _compose("prepare-data", natural, "path=", data)


def test_a_mixture_picks_answers_by_no_domain():
    assert _compose("train-drafter", "domain=sql").domain.answers_domain == "sql"
    assert _compose("train-drafter", "domain=general").domain.answers_domain == ""


def test_quickstart_tunes_on_other_prompts_than_the_pool_learned_from():
    recipe = (Path(__file__).parents[1] / "scripts" / "train_pool").read_text()
    assert not re.search(r"^ *drafterforge .* seed=", recipe, re.MULTILINE) and _compose("prepare-data").seed == 0
    assert _compose("quickstart").seed != 0


def test_every_yaml_belongs_to_a_command():
    groups = {g for row in COMMANDS.values() for g in catalogue.command_groups(row.name)}
    folder = catalogue.resources.files("drafterforge.configs")
    assert {p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != "_"} == groups
    files = {p.name for p in folder.iterdir() if p.name.endswith(".yaml")}
    assert files == {f"{row.name}.yaml" for row in COMMANDS.values()}


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_the_values_that_would_be_composed(command):
    row = COMMANDS[command]
    composed = catalogue.flat(to_dict(_compose(command)), "", dict.fromkeys(LEAVES))
    defaults = catalogue.default_values(row.name, catalogue.narrow_to_choices(row.name, row.config, {}))
    differing = {key for key in defaults if defaults[key] != composed[key]}
    assert all(key.startswith("domain.") or key == "path" for key in differing)


def _variants():
    """Sections whose class is chosen by their group, where a command has that group."""
    return [
        (row, section, variants)
        for row in COMMANDS.values()
        for section, variants in variants_of(row.config).items()
        if section in catalogue.command_groups(row.name)
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_key_has_a_help_text(command):
    row = COMMANDS[command]
    narrowed = [narrow(row.config, {s: name}) for r, s, v in _variants() if r == row for name in v.classes]
    for config_class in [row.config, *narrowed]:
        texts = catalogue.help_texts(config_class)
        assert texts.keys() == catalogue.config_keys(config_class).keys()
        assert [key for key, text in texts.items() if not text.strip() or "\n" in text] == []


def test_every_choice_sets_only_keys_that_its_variant_reads():
    for _, section, variants in _variants():
        for choice in catalogue.group_choices(section):
            name = catalogue.variant_name(section, variants, choice)
            assert catalogue.group_values(section, choice).keys() <= variants.keys_of(name), choice


def test_every_variant_can_be_typed_and_is_what_the_config_holds():
    for row, section, variants in _variants():
        for name, config_class in variants.classes.items():
            choice = catalogue.choices_for(section, variants, name)[0]
            config = getattr(_compose(row.name.replace("_", "-"), f"{section}={choice}"), section)
            assert type(config) is config_class and getattr(config, variants.key) == name


def test_a_kind_of_drafter_registered_from_python_brings_its_keys(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Ngram(DrafterConfig):
        width: int = setting(3, "tokens that are looked up")

    monkeypatch.setitem(catalogue.REGISTERED, "drafter", {})
    monkeypatch.setitem(DRAFTERS, "ngram", Ngram)
    register_drafter("ngram", Ngram)
    config = _compose("train-drafter", "drafter=ngram", "drafter.width=5").drafter
    assert config == Ngram(kind="ngram", width=5)
    with pytest.raises(
        ConfigError, match=r"drafter=ngram has no key drafter\.lora\.rank; drafter=eagle3, drafter=block have"
    ):
        _compose("train-drafter", "drafter=ngram", "drafter.lora.rank=1")
    with pytest.raises(ConfigError, match=r"drafter=auto has no key drafter\.width; drafter=ngram has"):
        _compose("train-drafter", "drafter.width=5")


def test_an_experiment_may_speak_of_keys_that_the_chosen_method_does_not_read():
    assert _compose("train-policy", "policy=joint", "experiment=smoke").policy.arms == 8
    assert _compose("train-policy", "policy=ltd", "experiment=smoke").policy.rounds == 1


def test_an_experiment_may_choose_a_group_and_what_is_typed_wins():
    paper = _compose("train-policy", "experiment=ltd_paper")
    assert (paper.policy.method, paper.policy.name, paper.policy.alone_size) == ("ltd", "ltd-paper", 61)
    text = _compose("train-policy", "policy=resps-text", "experiment=resps_paper")
    assert (text.policy.method, text.policy.parts) == ("resps", ["text"])
    grid = ActionGrid(*(tuple(v) if isinstance(v, list) else v for v in vars(text.grid).values()))
    assert len(grid) == 177 and text.traces.num_train == 4000
    assert _compose("calibrate", "experiment=ltd_paper").grid.num_tokens[-1] == 241


def test_experiment_sets_only_what_it_names_and_what_is_typed_wins():
    plain, smoke = _compose("train-drafter"), _compose("train-drafter", "experiment=smoke")
    assert smoke.target == plain.target and smoke.domain == plain.domain
    assert smoke.trainer.max_steps < plain.trainer.max_steps
    typed = _compose("train-drafter", "trainer.max_steps=7", "experiment=smoke")
    assert typed.trainer == dataclasses.replace(smoke.trainer, max_steps=7)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("domain", domains())
def test_every_grammar_has_a_domain_and_a_share_of_the_mixture(domain):
    assert _compose("train-drafter", f"domain={domain}").domain.grammar
    assert _compose("train-drafter", "domain=general").domain.weights.keys() == set(domains())


def test_the_pool_learns_from_the_domains_of_its_experts():
    config = _compose("train-drafter", "domain=general", "experiment=pool_smollm2")
    recorded = DomainConfig(name="general", weights=dict.fromkeys(POOL_DOMAINS, 1.0))
    assert weighted_domain(config.domain) == recorded  # what the shipped generalist's answers were made with
    recipe = (Path(__file__).parents[1] / "scripts" / "train_pool").read_text()
    assert "from drafterforge.prompts.domains import domains; print(*domains())" in recipe


def test_the_shipped_generalist_is_found_by_its_recipe():
    config = _compose("train-drafter", "domain=general", "experiment=pool_smollm2")
    manifest = Manifest.read(SHIPPED / "smollm2-135m" / "drafters" / "general")
    assert recorded_config(config.drafter) == manifest.config["drafter"]
    assert settings_of(config.trainer) == with_present_keys(manifest.config)["trainer"]


def test_a_training_on_fewer_answers_is_another_one():
    config = _compose("train-drafter", "trainer.num_answers=100")
    assert settings_of(config.trainer)["num_answers"] == 100


def test_a_template_is_recorded_where_it_is_read():
    typed = ["domain=summarization", "data=hf"]
    instruction = _compose("prepare-data", *typed).domain.template
    assert instruction == "Summarize the following article.\n\n{text}"
    for more, template in (
        ([], instruction),
        (["dataset=a/b"], None),
        (["dataset=a/b", "data.template='Sum up: {text}'"], "Sum up: {text}"),
        (["data=grammar"], None),
    ):
        settings = recorded_settings(_compose("prepare-data", *typed, *more), SimpleNamespace(dtype="float32"))
        assert settings["data"].get("template") == template and "template" not in settings["domain"]
    for typed, line in (
        (["data.template='Sum up: {text}'"], r"data\.template= is read by data=hf only"),
        (["data=hf", "data.template=Summarize"], r"says nowhere where the text goes; type data\.template="),
    ):
        with pytest.raises(ConfigError, match=line):
            _compose("prepare-data", *typed)


def test_settings_that_change_nothing_are_not_recorded_with_answers():
    plain = _compose("prepare-data", "data=jsonl")
    named = _compose("prepare-data", "data=jsonl", "data.domain_names={code: python}", "data.licences=[MIT]")
    assert answer_settings(plain).keys() == answer_settings(named).keys() - {"domain_names", "licences"}


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("answers=general", ["general"]),
        ("answers=[general]", ["general"]),
        ("answers=[grammar,natural]", ["grammar", "natural"]),
        ("answers=[general, /data/my-runs/sql_2]", ["general", "/data/my-runs/sql_2"]),
        ("answers=../my runs/a,b (1)", ["../my runs/a,b (1)"]),
        ("answers='[odd]'", ["[odd]"]),
        ("answers=", []),
        ("answers=[]", []),
    ],
)
def test_answers_are_one_name_or_a_list_of_names(typed, names):
    assert _compose("train-drafter", typed).answers == names
    assert _compose("quickstart", "answers=[a,b]", typed).answers == names


@pytest.mark.parametrize("typed", ["answers=null", "answers=[a", "answers=[[a]]"])
def test_answers_that_are_no_names_are_refused(typed):
    with pytest.raises(ConfigError, match=r"^answers"):
        _compose("train-drafter", typed)


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (["data.domain_names={code: python}"], {"code": "python"}),
        (["data.domain_names={code:python,word problems:math}"], {"code": "python", "word problems": "math"}),
        (["data.domain_names.code=python", "data.domain_names.qa=science"], {"code": "python", "qa": "science"}),
        (["data.domain_names={code: python}", "data.domain_names.code=sql"], {"code": "sql"}),
        (["data.domain_names={}"], {}),
    ],
)
def test_names_of_domains_are_a_mapping(typed, names):
    assert _compose("prepare-data", "data=jsonl", *typed).data.domain_names == names


@pytest.mark.parametrize("text", ["code", "[code,python]", "{code: [a]}", "{code", "null"])
def test_names_of_domains_that_are_no_mapping_are_refused(text):
    with pytest.raises(ConfigError, match=r"^data\.domain_names.*(a mapping such as \{a:b,c:d\}|cannot be read)"):
        _compose("prepare-data", "data=jsonl", f"data.domain_names={text}")


def test_values_arrive_typed():
    config = _compose(
        "train-drafter",
        "domain=general",
        "domain.weights.sql=2",
        "trainer.lr=1",
        "trainer.loggers=[csv]",
        "trainer.min_lr_ratio=${trainer.warmup_ratio}",
        "runtime.depth=4",
        "runtime.top_k=null",
        "overwrite=true",
        "target.revision=null",
    )
    assert config.domain.weights == dict.fromkeys(domains(), 1.0) | {"sql": 2.0}
    assert isinstance(config.trainer.lr, float) and config.trainer.loggers == ["csv"]
    assert config.trainer.min_lr_ratio == config.trainer.warmup_ratio
    assert (config.runtime.depth, config.runtime.top_k) == (4, None)
    assert config.overwrite is True and config.target.revision is None


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        ("my prompts.jsonl", "my prompts.jsonl"),
        ("a=b,c (1) [x] {y} ${z}.jsonl", "a=b,c (1) [x] {y} ${z}.jsonl"),
        ("'007'", "007"),
        ("1e3", "1e3"),
        ("~/données.jsonl", "~/données.jsonl"),
    ],
)
def test_text_is_taken_as_typed(typed, path):
    assert _compose("prepare-data", f"path={typed}", "data.source=jsonl").data.path == path


def test_shorthands_stand_for_data_keys():
    config = _compose("prepare-data", "data=hf", "dataset=a/b", "column=question")
    assert (config.data.dataset, config.data.column) == ("a/b", "question")


@pytest.mark.parametrize("name", ["kubernetes", "k8s-2_x", "7", "own", "sqll"])
@pytest.mark.parametrize("source", ["data=jsonl", "data=hf"])
def test_prompts_of_one_s_own_make_a_domain_of_any_name(name, source):
    domain = _compose("prepare-data", f"domain={name}", source).domain
    assert domain == DomainConfig(name=name, grammar=False) and domain.answers_domain == name
    with pytest.raises(ConfigError, match=f"no domain named '{name}'"):
        _compose("prepare-data", f"domain={name}")


def test_what_is_typed_last_wins():
    config = _compose("train-drafter", "domain=math", "domain=sql", "seed=1", "seed=2")
    assert (config.domain.name, config.seed) == ("sql", 2)


def test_a_typo_in_a_yaml_is_found(tmp_path, monkeypatch):
    from drafterforge.config import compose as load

    monkeypatch.setattr(load, "_compose", lambda *_: {"trainer": {"max_stepz": 3}})
    with pytest.raises(ConfigError, match=r"trainer\.max_stepz.*did you mean trainer\.max_steps"):
        _compose("train-drafter")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["target.model=./mine"], "target.model= is read by target=hf only"),
        (["target.revision=v1"], "target.revision= is read by target=hf only"),
        (["dataset=a/b"], "dataset= is read by data=hf only"),
        (["seed=-1"], r"seed must lie in \[0, 2\*\*32\), got -1"),
    ],
)
def test_a_key_that_would_be_ignored_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        _compose("prepare-data", "domain=sql", *overrides)


@pytest.mark.parametrize(
    "typed",
    [
        "data.num_train=9",
        "data.num_val=9",
        "domain.weights.sql=2",
        "domain.weights={sql:1}",
        "data.answers=target",
        "data.max_new_tokens=9",
        "data.max_prompt_tokens=9",
        "data.temperature=1",
    ],
)
def test_a_key_of_prompts_or_their_answers_is_refused_with_answers(typed):
    with pytest.raises(
        ConfigError, match=rf"^{typed.partition('=')[0]}= .*not read with answers=; leave it out, or type "
    ):
        _compose("train-drafter", "domain=general", "answers=general", typed)
    _compose("train-drafter", "domain=general", typed)
    _compose("train-drafter", "domain=general", "answers=general", "experiment=smoke")  # its counts are not typed


def test_quickstart_reads_the_length_of_prompts_with_answers():
    _compose("quickstart", "domain=sql", "answers=sql", "data.max_prompt_tokens=9")
    with pytest.raises(ConfigError, match=r"^data\.temperature= .*not read with answers="):
        _compose("quickstart", "domain=sql", "answers=sql", "data.temperature=1")


def test_settings_recorded_without_a_dtype_match_any():
    present = {"dtype": "float32", "seed": 0}
    assert with_present_keys({"seed": 0}, present) == present
    assert with_present_keys({"config": {"seed": 0}}, {"config": present}) == {"config": present}
    assert with_present_keys({"dtype": "bfloat16", "seed": 0}, present) != present


def test_recorded_settings_have_the_present_names_of_keys_and_values():
    recorded = {"data": {"source": "served", "path": "served"}, "traces": {"told_top_k": 4}, "pool": {"every": 1}}
    present = {"data": {"source": "recorded", "path": "served"}, "traces": {"score_top_k": 4}, "pool": {}}
    assert with_present_keys(recorded) == present
