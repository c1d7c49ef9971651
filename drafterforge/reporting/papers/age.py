"""Finds cells of the papers' tables whose report is older than the code, or than the drafters, that it describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drafterforge.reporting.code_state import changed_parts, parts_behind
from drafterforge.reporting.papers.evidence import Evidence
from drafterforge.reporting.papers.points import Point
from drafterforge.reporting.papers.tables import PaperTable
from drafterforge.reporting.reader import is_live, mapping, records, text

DRAFTERS = "drafters"
STATIC, POLICY, ROUTER = "static", "policy", "router"  # selectors, and any schedule that was trained


def old_rows(
    evidence: Evidence,
    tables: Sequence[PaperTable],
    names: Sequence[str],
    code: Mapping[str, str],
    drafters: Mapping[str, str],
) -> list[str]:
    """A line for each row that is older than what it describes.

    names: of the reports.  code: see `code_state`.  drafters: sha256 of the manifests of today's drafters by name.
    """
    lines = []
    for table in tables:
        for cell in table.all_cells:
            if cell.source is None:
                continue
            source, report = cell.source, cell.source.report
            parts = parts_behind(live=source.live, selector=source.selector, schedule=source.schedule)
            changed = changed_parts(evidence.codes[report], code, parts)
            changed += changed_drafters(evidence.parents[report], drafters)
            if changed:
                row = f"{source.method} on {source.domain}" if not isinstance(source, Point) else cell.method
                lines.append(f"{names[report]}: {row} is older than {', '.join(changed)}")
    return list(dict.fromkeys(lines))


def is_current(report: Mapping[str, Any], code: Mapping[str, str], drafters: Mapping[str, str]) -> bool:
    """Whether all rows of a report, and the policy that it is of, were made by this code, with these drafters."""
    evidence_of = [
        parts_behind(
            live=is_live(row),
            selector=ROUTER if "accuracy" in row else text(row.get("selector")),  # rows of a router itself name none
            schedule=text(row.get("scheduler")),
        )
        for row in records(report.get("rows"))
    ]
    if not evidence_of or "replayed" in mapping(report.get("curves")):  # of a policy, whose rows are a part of it
        evidence_of.append(parts_behind(live=False, selector=STATIC, schedule=POLICY))
    parts = list(dict.fromkeys(part for parts in evidence_of for part in parts))
    return not changed_parts(mapping(report.get("code")), code, parts) and not changed_drafters(
        report.get("parents"), drafters
    )


def changed_drafters(parents: Any, drafters: Mapping[str, str]) -> list[str]:
    """Drafters behind a report that are no longer the same."""
    behind = {
        text(entry.get("name")): entry.get("sha256") for entry in records(parents) if entry.get("kind") == DRAFTERS
    }
    return [f"drafter {name}" for name, digest in behind.items() if drafters.get(name, digest) != digest]
