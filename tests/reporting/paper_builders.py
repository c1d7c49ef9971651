"""Rows of reports, and the cells that the papers' tables make of them."""

from __future__ import annotations

from drafterforge.reporting.papers.policy_steps import EAGLE_TREES
from drafterforge.reporting.papers.tables import PaperTable, paper_tables
from tests.reporting.builders import full_report, live_row

POOL = ["general", "sql", "retrieval"]
RESPS = ("mt_bench", "humaneval", "gsm8k", "alpaca", "cnn_dm")


def report(*rows: dict, **more) -> dict:
    return full_report(rows=list(rows), curves=more)


def alone(drafter: str, domain: str, mat: float = 2.0, speedup: float = 1.5, **more) -> dict:
    return live_row(f"{drafter} alone", speedup, None, drafters=[drafter], domain=domain, mat=mat, **more)


def over(selector: str, domain: str, mat: float, **more) -> dict:
    return (
        live_row(f"{selector} over the pool", 1.8, None, selector=selector, drafters=POOL, domain=domain, mat=mat)
        | more
    )


def with_policy(name: str, domain: str, speedup: float) -> dict:
    return alone("general", domain, speedup=speedup) | {"method": f"general alone with {name}", "scheduler": name}


def with_tree(paper: str, domain: str, speedup: float) -> dict:
    """A row of the default tree of a paper's EAGLE-3."""
    return with_policy(EAGLE_TREES[paper], domain, speedup)


def tables(*reports: dict) -> dict[str, PaperTable]:
    return {table.form.key: table for table in paper_tables(reports)[1]}


def cells(table: PaperTable) -> dict[tuple[str, str], dict[str, str]]:
    """Non-empty cells by method and figure."""
    return {
        (method, figure): {name: value for name, value in zip(table.ours.headings[2:], values, strict=True) if value}
        for method, figure, *values in table.ours.cells
        if any(values)
    }
