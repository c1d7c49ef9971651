"""Check the hashes of a bundle, and print its record as tables."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from drafterforge.assembly.bundles import check_bundle, locate
from drafterforge.bundle.card import how, summary
from drafterforge.bundle.record import BundleRecord
from drafterforge.config.progress import table_console


def run(path: Path) -> BundleRecord:
    record = check_bundle(locate(path))
    target, default = record.target, record.defaults
    table = Table(title=f"bundle {record.name}: all files undamaged", title_justify="left", show_header=False)
    source = target.model or "embedded default"
    table.add_row("target", f"{target.name} ({source}), fingerprint {target.fingerprint}")
    table.add_row("created", f"by drafterforge {record.drafterforge_version}")
    table.add_row("newest part", record.created)
    table.add_row("digest", record.digest)
    table.add_row("decodes", how(default).replace("`", ""))
    table.add_row("drafters", ", ".join(default.drafters))
    console = table_console()
    console.print(table)
    drafters = Table("drafter", "kind", "domain", "adapter of", "bytes", "validation accept length", "licence")
    for entry in record.drafters:
        size = sum(file.bytes for name, file in record.files.items() if name.startswith(f"{entry.path}/"))
        length = entry.training.get("val_accept_length")
        validation = f"{length:.2f}" if isinstance(length, int | float) else ""
        cells = [entry.name, entry.kind, entry.domain, entry.base, f"{size:,}" if entry.path else ""]
        drafters.add_row(*cells, validation, entry.licence or "not stated")
    console.print(drafters)
    parts = Table("part", "kind", "about")
    for part in record.parts:
        parts.add_row(part.name, part.kind, summary(part.about))
    if record.parts:
        console.print(parts)
    return record
