"""Help, from the config classes and the YAML files; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drafterforge.cli.table import COMMANDS, Command
from drafterforge.config import catalogue
from drafterforge.config.hints import plain_value
from drafterforge.config.overrides import typed_choices
from drafterforge.config.several import SEVERAL
from drafterforge.config.variants import variants_of

HELP = {"-h", "--help", "help"}
USAGE = {"inspect": "PATH ", "plan": "COMMAND [its groups and keys ...] ", "learn": "ACTION [LOG.jsonl] "}


def overview() -> str:
    """The commands, a line each."""
    rows = [f"  {name:<15}{command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "drafterforge COMMAND [group=choice ...] [key=value ...]",
            "",
            "Distil, schedule and serve domain-expert EAGLE-3 drafters.",
            "",
            *rows,
            "",
            "drafterforge COMMAND --help lists its groups and keys; drafterforge --version.",
        ]
    )


def command_help(name: str, command: Command, overrides: Sequence[str]) -> str:
    """The groups and keys of a command, as the overrides typed beside `--help` narrow them."""
    usage = USAGE.get(name, "")
    usage = usage.strip() if name == "inspect" else f"{usage}[group=choice ...] [key=value ...]"
    lines = [f"drafterforge {name} {usage}", "", f"{command.summary}.", ""]
    groups = catalogue.command_groups(command.name)
    if groups:
        lines.append("Groups, with their default:")
        for group, default in groups.items():
            default_text = {None: "", "???": "required"}.get(default, default)
            names = catalogue.group_choices(group)
            if group == "domain" and "data" in groups:
                names.append("any name with data=jsonl or data=hf")
            lines.append(f"  {group:<12}{default_text:<15}{' | '.join(names)}")
        lines.append("")
    lines.append("Keys, with their default:")
    choices = typed_choices(command.name, overrides)
    values, texts = _keys(command, choices)
    values |= {f"{group}.name": "" for group, default in groups.items() if default == "???" and group not in choices}
    lines += _rows(values, texts)
    for group, variants in variants_of(command.config).items():
        for variant in variants.classes if group not in choices else ():
            variant_choices = catalogue.choices_for(group, variants, variant)
            further_values, further = _keys(command, {group: variant_choices[0]})
            further = {key: text for key, text in further.items() if key not in texts}
            if further:
                lines += ["", f"Further keys of {group}={', '.join(variant_choices)}:"]
                lines += _rows(further_values, further)
    if command.lists:
        lines += [
            "",
            "Several LoRA experts at once, trained from one stream: domain=[sql,math] drafter=lora; studies of one:",
        ]
        lines += [
            "domain=sql answers=sql drafter=lora name=[low,high] drafter.lora.rank=[4,16].  Keys that take a list:"
        ]
        lines += [f"{', '.join(SEVERAL)}."]
    if "data.path" in values:
        lines += ["", "path=, dataset= and column= are short for data.path=, data.dataset= and data.column=."]
    return "\n".join(lines)


def _keys(command: Command, choices: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Default values and help texts of the keys that a command reads under these choices of groups."""
    config_class = catalogue.narrow_to_choices(command.name, command.config, choices)
    return catalogue.default_values(command.name, config_class, choices), catalogue.help_texts(config_class)


def _rows(values: Mapping[str, Any], texts: Mapping[str, str]) -> list[str]:
    return [f"  {f'{key}={plain_value(values[key])}':<38} {text}" for key, text in texts.items()]
