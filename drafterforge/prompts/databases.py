"""Databases for SQL prompts: tables with typed columns, questions about them, and schemas as users paste them.

A database is a line `library | books: title=, genre*, price# | loans: book>, fine+`. Every table has an id. A mark
gives the type of a column: = name, * category, # level (can be averaged), + amount (can also be summed), @ date,
> reference to the table with that row name.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from drafterforge.prompts.templates import Record, fill, slots
from drafterforge.prompts.words import singular

COLUMN_SLOTS = {"label": "=", "cat": "*", "num": "#+", "sum": "+", "date": "@"}
INTEGERS = ("_count", "stock", "quantity", "_points", "_year", "floor", "credits", "calories")
MONEY = ("price", "fee", "salary", "wage", "rate", "cost", "budget", "premium", "fine", "amount")
UNITS = ("_minutes", "_seconds", "_km", "_kg", "_kw", "_kwh", "_tons", "_hectares")
TYPES = {"=": "VARCHAR(100)", "*": "VARCHAR(40)", "@": "DATE", ">": "INTEGER"}
LAYOUTS = ("plain", "plain", "create", "create", "bullets", "prose")


def database(line: str) -> Record:
    """Parse a database line; a `Record` of the database with `tables`, which have `row` and `columns`."""
    name, *parts = line.split(" | ")
    return Record(name, tables=[_table(part) for part in parts])


def _table(part: str) -> Record:
    name, columns = part.split(": ")
    return Record(
        name, row=singular(name), columns=[_column(column[:-1], column[-1]) for column in columns.split(", ")]
    )


def _column(name: str, mark: str) -> Record:
    plain = name
    for unit in UNITS:
        plain = plain.removesuffix(unit)
    number = "INTEGER" if name == "age" or name.endswith(INTEGERS) else "NUMERIC(10, 2)"
    name = f"{name}_id" if mark == ">" else name
    return Record(name, mark=mark, words=plain.replace("_", " "), type=TYPES.get(mark, number))


def _marked(table: Record, marks: str) -> list[Record]:
    return [column for column in table.fields["columns"] if column.fields["mark"] in marks]


def questions(
    database: Record, of_one_table: Mapping[str, Any], of_two_tables: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The slots of each question, once for each choice of tables and columns.

    A question's name is its task; if two choices give the same task, the first is used.
    """
    tasks: dict[str, dict[str, Any]] = {}
    for name, question, bound in _bindings(database, of_one_table, of_two_tables):
        wording = {"question": fill(name, bound), "phrasings": question["ask"], "query": question.get("query", "")}
        tables = [
            table
            for table in database.fields["tables"]
            if table in (bound.get(k) for k in ("table", "child", "parent"))
        ]
        columns = {"category": bound.get("cat") or bound.get("pcat") or "", "number_column": bound.get("num", "")}
        tasks.setdefault(wording["question"], {**bound, **wording, **columns, "about": tables})
    return list(tasks.values())


def _bindings(
    database: Record, of_one_table: Mapping[str, Any], of_two_tables: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any], dict[str, Record]]]:
    tables = {table.fields["row"]: table for table in database.fields["tables"]}
    for table in tables.values():
        columns = {slot: _marked(table, marks) for slot, marks in COLUMN_SLOTS.items()}
        columns["money"] = [column for column in columns["num"] if column.endswith(MONEY)]
        yield from _choices(of_one_table, columns, table=table)
        for key in _marked(table, ">"):
            parent = tables[key.removesuffix("_id")]
            columns |= {"plabel": _marked(parent, "="), "pcat": _marked(parent, "*")}
            yield from _choices(of_two_tables, columns, child=table, parent=parent, key=key)


def _choices(
    questions: Mapping[str, Any], columns: Mapping[str, list[Record]], **bound: Record
) -> Iterator[tuple[str, Mapping[str, Any], dict[str, Record]]]:
    for name, question in questions.items():
        used = set().union(*(slots(text) for text in (name, *question["ask"], question.get("query", ""))))
        names = sorted(columns.keys() & used)
        for choice in product(*(columns[name] for name in names)):
            yield name, question, {**bound, **dict(zip(names, choice, strict=True))}


def schema(rng: random.Random, tables: Sequence[Record]) -> str:
    """The schema of the tables in a random layout, as a user may paste it."""
    layout = rng.choice(LAYOUTS)
    if layout == "create":
        return "\n".join(map(create_table, tables))
    listed = {table: ", ".join(["id", *table.fields["columns"]]) for table in tables}
    if layout == "plain":
        return "\n".join(f"{table}({columns})" for table, columns in listed.items())
    if layout == "bullets":
        return "Tables:\n" + "\n".join(f"- {table}: {columns}" for table, columns in listed.items())
    return " ".join(f"The table {table} has the columns {columns}." for table, columns in listed.items())


def create_table(table: Record) -> str:
    columns = ["id INTEGER PRIMARY KEY", *(f"{column} {column.fields['type']}" for column in table.fields["columns"])]
    return f"CREATE TABLE {table} (\n  " + ",\n  ".join(columns) + "\n);"


def broken(rng: random.Random, query: str, mistakes: Sequence[Mapping[str, str]]) -> list[str]:
    """The query with a random mistake, and its author's complaint."""
    fitting = [mistake for mistake in mistakes if re.search(mistake["find"], query)]
    mistake = rng.choice(fitting)
    return [re.sub(mistake["find"], mistake["put"], query, count=1), mistake["complaint"]]
