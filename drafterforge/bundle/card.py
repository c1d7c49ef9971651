"""The model card of a bundle, in the format of the Hugging Face hub."""

from __future__ import annotations

import json

from drafterforge.bundle.record import BundleRecord, Defaults, DrafterEntry

CARD = "README.md"


def model_card(record: BundleRecord) -> str:
    """The README.md of a bundle: its purpose, how to run it, its contents and its measured figures."""
    target = record.target
    licences = {entry.licence for entry in record.drafters if entry.path}
    licence = licences.pop() if len(licences) == 1 else ""
    metadata = {
        "library_name": "drafterforge",
        "tags": ["speculative-decoding", "eagle-3", "drafter"],
        "license": licence.lower() or "other",  # of the files of the bundle, to which the target does not belong
    }
    if target.source == "hf" and "/" in target.model and not target.model.startswith(("/", ".", "~")):
        metadata["base_model"] = target.model
    source = target.model if target.source == "hf" else "the embedded default"
    default = record.defaults
    lines = [
        "---",
        *(f"{key}: {json.dumps(value)}" for key, value in metadata.items()),
        "---",
        f"# {record.name}: drafters for {target.name}",
        "",
        f"A drafterforge bundle: {len(record.drafters)} drafters of one target. Decoding is lossless:",
        "the output is the target's own, only its speed changes.",
        "",
        "```python",
        "import drafterforge",
        "",
        f'engine = drafterforge.open("{record.name}")  # this folder, its .tar or its hub id',
        'print(engine.generate("..."))',
        "```",
        "",
        f"**Target** {target.name} ({source}{', revision ' + target.revision if target.revision else ''}), fingerprint",
        f"`{target.fingerprint}`; no other target is accepted. Licence: {target.licence or 'not stated'}.",
        "",
        f"**Decodes** {how(default)}, numerics `{default.numerics}`.",
        "",
        "| drafter | kind | domain | adapter of | licence | validation accept length |",
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


def how(default: Defaults) -> str:
    """How the bundle's engine decides what to draft, if nothing is typed when it is opened."""
    if default.automatic:
        return (
            f"as `drafter=auto`; `drafter=pool` picks a drafter for each cycle with the selector "
            f"`{default.selector_name}`"
        )
    router, scheduler = code_or_none(default.router), code_or_none(default.scheduler)
    return f"with the selector `{default.selector_name}`, scheduler {scheduler}, router {router}"


def code_or_none(name: str) -> str:
    return f"`{name}`" if name else "none"


def drafter_row(entry: DrafterEntry) -> str:
    """The drafter's row of the table of drafters."""
    accept_length = entry.training.get("val_accept_length")
    accept_cell = f"{accept_length:.2f}" if isinstance(accept_length, int | float) else ""
    cells = [entry.name, entry.kind, entry.domain, entry.base, entry.licence or "not stated", accept_cell]
    return "| " + " | ".join(cells) + " |"


def evaluation_rows(entry: DrafterEntry) -> list[str]:
    """The drafter's rows of the table of measurements."""
    keys = ("domain", "method", "num_prompts", "mat", "speedup", "mismatches", "device")
    return [
        "| " + " | ".join([entry.name, *(str(row.get(key, "")) for key in keys)]) + " |"
        for row in entry.evaluation.get("rows", [])
        if isinstance(row, dict)
    ]


def summary(about: dict) -> str:
    """The texts and numbers of a part's `about`, in one line."""
    scalars = {key: value for key, value in about.items() if value != "" and isinstance(value, str | int | float)}
    return ", ".join(f"{key} {value}" for key, value in sorted(scalars.items())).replace("|", "/")
