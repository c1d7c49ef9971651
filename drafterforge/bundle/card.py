"""The model card of a bundle, in the hub's form."""

from __future__ import annotations

import json

from drafterforge.bundle.record import BundleRecord, DrafterEntry

CARD = "README.md"


def model_card(record: BundleRecord) -> str:
    """README.md: what the bundle is for, how to run it, what is in it and what was measured."""
    target = record.target
    licences = {entry.licence for entry in record.drafters if entry.path}
    one = licences.pop() if len(licences) == 1 else ""
    front = {
        "library_name": "drafterforge",
        "tags": ["speculative-decoding", "eagle-3", "drafter"],
        "license": one.lower() or "other",  # of what is in it, which the target is not
    }
    if target.source == "hf" and "/" in target.model and not target.model.startswith(("/", ".", "~")):
        front["base_model"] = target.model
    source = target.model if target.source == "hf" else "the embedded default"
    default = record.defaults
    lines = [
        "---",
        *(f"{key}: {json.dumps(value)}" for key, value in front.items()),
        "---",
        f"# {record.name}: drafters for {target.name}",
        "",
        f"A drafterforge bundle: {len(record.drafters)} drafters of one target and what chooses among them. Decoding",
        "is lossless: the output is the target's own, only its speed changes.",
        "",
        "```python",
        "import drafterforge",
        "",
        f'engine = drafterforge.open("{record.name}")  # this folder, its .tar or its hub id',
        'print(engine.generate("..."))',
        "```",
        "",
        f"**Target** {target.name} ({source}{', revision ' + target.revision if target.revision else ''}), fingerprint",
        f"`{target.fingerprint}`; any other is refused. Licence: {target.licence or 'not stated'}.",
        "",
        f"**Defaults** selector `{default.selector}`, scheduler {named(default.scheduler)}, router"
        f" {named(default.router)}, numerics `{default.numerics}`.",
        "",
        "| drafter | kind | domain | adds to | licence | validation accept length |",
        "|---|---|---|---|---|---|",
        *(drafter_row(entry) for entry in record.drafters),
    ]
    if rows := [row for entry in record.drafters for row in evaluation_rows(entry)]:
        lines += ["", "| drafter | domain | method | prompts | MAT | speed-up | mismatches | device |"]
        lines += ["|---|---|---|---|---|---|---|---|", *rows]
    if record.parts:
        lines += ["", "| part | kind | about |", "|---|---|---|"]
        lines += [f"| {part.name} | {part.kind} | {summary(part.about)} |" for part in record.parts]
    lines += ["", f"Made by drafterforge {record.drafterforge_version} from parts of {record.created}.", ""]
    return "\n".join(lines)


def named(name: str) -> str:
    """A name as code, or `none`."""
    return f"`{name}`" if name else "none"


def drafter_row(entry: DrafterEntry) -> str:
    """One drafter as a row of a table."""
    length = entry.training.get("val_accept_length")
    found = f"{length:.2f}" if isinstance(length, int | float) else ""
    cells = [entry.name, entry.kind, entry.domain, entry.base, entry.licence or "not stated", found]
    return "| " + " | ".join(cells) + " |"


def evaluation_rows(entry: DrafterEntry) -> list[str]:
    """What reports say of a drafter, as rows of a table."""
    keys = ("domain", "method", "num_prompts", "mat", "speedup", "mismatches", "device")
    return [
        "| " + " | ".join([entry.name, *(str(row.get(key, "")) for key in keys)]) + " |"
        for row in entry.evaluation.get("rows", [])
        if isinstance(row, dict)
    ]


def summary(about: dict) -> str:
    """Plain values of a part, in one line."""
    plain = {key: value for key, value in about.items() if value != "" and isinstance(value, str | int | float)}
    return ", ".join(f"{key} {value}" for key, value in sorted(plain.items())).replace("|", "/")
