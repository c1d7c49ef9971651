#!/usr/bin/env python3
"""Writes natural prompts of open licences by domain, and held-out questions that no prompt repeats.

    python scripts/natural_prompts.py OUT OWNER/NAME=CLONE ... [--also FOLDER] [--held-out FOLDER] [--passages]

CLONE is a git clone of a public repository, of which these are read:

    lmarena/arena-hard-auto        chat                  Apache-2.0
    yizhongw/self-instruct         chat                  Apache-2.0
    teknium1/GPTeacher             chat, python, tools   MIT
    pubmedqa/pubmedqa              clinical              MIT
    TellinaTool/nl2bash            shell                 MIT (data/bash)

`--also` adds the prompts of JSONL files NAME.jsonl, lines of {"messages", "domain", "source", "licence"}, and
`--held-out` the questions of others; `code` is called `python`, and lines of a grammar, of PubMedQA or of
Universal Dependencies are left out.
`--passages` adds the domain `passages` of long prompts, such as a server with retrieval gets: two to five texts of
clinical or of summarization prompts, and the question or the instruction of one of them. It has no held-out questions,
which scripts/study_premise.py needs of every domain.
OUT/prompts/DOMAIN.jsonl is for `data=jsonl path=`, OUT/questions/DOMAIN.jsonl for `suite.questions=`; together they
are what scripts/study_premise.py takes.  A domain without held-out files, and chat, keeps 120 prompts as questions.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafterforge.errors import ConfigError, DrafterforgeError

MAX_WORDS = 300
QUESTIONS = 120
PASSAGES = 600  # prompts of several texts, of each domain that has texts
MAX_JOINED = 5  # texts of such a prompt
TEXTS = ("clinical", "summarization")  # domains whose prompts contain a text
SUMMARIZE = "Summarize: "
NAMES = {"code": "python"}
LEFT_OUT = ("grammar", "pubmedqa", "UniversalDependencies")  # not natural; only of `clinical`; a share-alike licence

Row = dict[str, Any]


def instruction(row: Row) -> str:
    """An instruction and its input, as Alpaca's form has them."""
    text = row.get("input") or (row.get("instances") or [{}])[0].get("input") or ""
    return f"{row['instruction']}\n{text}".strip()


def turn(row: Row) -> str:
    """The first turn of a question."""
    return str(row.get("prompt") or row["turns"][0]).strip()


def abstract(row: Row) -> str:
    """A question about an abstract of PubMed."""
    return f"{' '.join(row['CONTEXTS'])}\n\n{row['QUESTION']} Answer from the text, and explain."


def task(row: Row) -> str:
    """What a command has to do."""
    return f"{row['line']}\nAnswer with one bash command, and explain it."


@dataclass(frozen=True)
class Source:
    """A file of a repository."""

    repository: str
    path: str
    domain: str
    licence: str
    read: Callable[[Row], str]
    keep: str = ""  # only prompts that contain this


SOURCES = (
    Source("lmarena/arena-hard-auto", "data/arena-hard-v0.1/question.jsonl", "chat", "Apache-2.0", turn),
    Source("lmarena/arena-hard-auto", "data/arena-hard-v2.0/question.jsonl", "chat", "Apache-2.0", turn),
    Source("yizhongw/self-instruct", "human_eval/user_oriented_instructions.jsonl", "chat", "Apache-2.0", instruction),
    Source("yizhongw/self-instruct", "data/seed_tasks.jsonl", "chat", "Apache-2.0", instruction),
    Source("teknium1/GPTeacher", "Roleplay/roleplay-simple-deduped-roleplay-instruct.json", "chat", "MIT", instruction),
    Source("teknium1/GPTeacher", "Toolformer/toolformer-similarity-0.9-dataset.json", "tools", "MIT", instruction),
    Source("teknium1/GPTeacher", "Codegen/codegen-instruct.json", "python", "MIT", instruction, keep="python"),
    Source("pubmedqa/pubmedqa", "data/ori_pqal.json", "clinical", "MIT", abstract),
    Source("TellinaTool/nl2bash", "data/bash/all.nl", "shell", "MIT", task),
)


@dataclass
class Domain:
    """Prompts with their source and licence, and held-out questions."""

    prompts: dict[str, tuple[str, str]] = field(default_factory=dict)
    questions: list[str] = field(default_factory=list)

    def hold_out(self, rng: random.Random) -> None:
        """Move prompts to the questions if there are none; drop those that are questions."""
        order = sorted(self.prompts)
        rng.shuffle(order)
        self.questions = self.questions or order[:QUESTIONS]
        held_out = set(self.questions)
        self.prompts = {prompt: self.prompts[prompt] for prompt in order if prompt not in held_out}


def rows_of(source: Source, clone: Path) -> Iterator[Row]:
    """The rows of a file in a clone's last commit: a JSON list, a JSON table, a row a line, or lines of text."""
    command = ["git", "-C", str(clone), "show", f"HEAD:{source.path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{clone} has no {source.path} in its last commit; clone {source.repository} whole")
    if source.path.endswith(".jsonl"):
        yield from map(json.loads, filter(None, done.stdout.split("\n")))
        return
    if source.path.endswith(".nl"):
        yield from ({"line": line} for line in filter(None, map(str.strip, done.stdout.split("\n"))))
        return
    table = json.loads(done.stdout)
    yield from table.values() if isinstance(table, dict) else table


def lines_of(folder: Path) -> Iterator[tuple[str, str, Row]]:
    """Domain, prompt and row of every line of a folder that is read."""
    if not (paths := sorted(folder.glob("*.jsonl"))):
        raise ConfigError(f"{folder} has no file NAME.jsonl; type a folder of prompts")
    for path in paths:
        for line in filter(None, path.read_text().split("\n")):
            row = json.loads(line)
            if not any(part in row["source"] for part in LEFT_OUT) and row.get("variant") != "ood":
                yield NAMES.get(row["domain"], row["domain"]), row["messages"][0]["content"], row


def collect(clones: dict[str, Path], also: Path | None, held_out: Path | None, passages: bool) -> dict[str, Domain]:
    """All domains, by name.  passages: the one of long prompts too."""
    domains: dict[str, Domain] = {}
    for source in SOURCES:
        if source.repository in clones:
            domain = domains.setdefault(source.domain, Domain())
            for row in rows_of(source, clones[source.repository]):
                if source.keep in (prompt := source.read(row)).lower():
                    domain.prompts.setdefault(prompt, (source.repository, source.licence))
    for name, prompt, row in lines_of(also) if also else ():
        domains.setdefault(name, Domain()).prompts.setdefault(prompt, (row["source"], row["licence"]))
    for name, prompt, _ in lines_of(held_out) if held_out else ():
        if name != "chat" and name in domains:
            domains[name].questions.append(prompt)
    rng = random.Random(0)
    for name in sorted(domains):
        domain = domains[name]
        domain.prompts = {text: about for text, about in domain.prompts.items() if len(text.split()) <= MAX_WORDS}
        domain.questions = [text for text in domain.questions if len(text.split()) <= MAX_WORDS]
        domain.hold_out(rng)
    if passages and (texts := [domains[name] for name in TEXTS if name in domains]):
        domains["passages"] = Domain({text: about for domain in texts for text, about in joined(domain, rng).items()})
    return domains


def parts_of(prompt: str) -> tuple[str, str, str]:
    """Instruction, text and question of a prompt; instruction or question is empty."""
    if prompt.startswith(SUMMARIZE):
        return SUMMARIZE.rstrip(": "), prompt.removeprefix(SUMMARIZE), ""
    first, _, last = prompt.partition("\n\n")
    return (first.rstrip(".:"), last, "") if len(first) < len(last) else ("", first, last)


def joined(domain: Domain, rng: random.Random) -> dict[str, tuple[str, str]]:
    """Prompts of several texts of a domain, with the instruction or the question of one of them."""
    parts = [(split, about) for prompt, about in domain.prompts.items() if any((split := parts_of(prompt))[::2])]
    prompts = {}
    for _ in range(PASSAGES if len(parts) > 1 else 0):
        some = rng.sample(parts, rng.randint(2, min(MAX_JOINED, len(parts))))
        (instruction, _, question), _ = some[0]
        texts = [text for (_, text, _), _ in some]
        rng.shuffle(texts)
        sources, licences = (
            " and ".join(sorted({*values})) for values in zip(*(about for _, about in some), strict=True)
        )
        prompts["\n\n".join(filter(None, (instruction and f"{instruction}:", *texts, question)))] = sources, licences
    return prompts


def write(out: Path, domains: dict[str, Domain]) -> None:
    """Write the prompts and the questions of each domain, and print how many there are."""
    for name, domain in sorted(domains.items()):
        prompts = [
            {"messages": [{"role": "user", "content": text}], "domain": name, "source": source, "licence": licence}
            for text, (source, licence) in domain.prompts.items()
        ]
        questions = [
            {"question_id": f"{name}-{number}", "category": name, "turns": [text]}
            for number, text in enumerate(domain.questions)
        ]
        for kind, lines in (("prompts", prompts), ("questions", questions)):
            if not lines:
                continue
            (out / kind).mkdir(parents=True, exist_ok=True)
            (out / kind / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        print(f"{name}: {len(prompts)} prompts, {len(questions)} questions")


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("clones", nargs="*", metavar="OWNER/NAME=CLONE")
    parser.add_argument("--also", type=Path, metavar="FOLDER", help="further prompts, NAME.jsonl")
    parser.add_argument("--held-out", type=Path, metavar="FOLDER", help="questions, NAME.jsonl")
    parser.add_argument("--passages", action="store_true", help="the domain of long prompts too")
    options = parser.parse_args(arguments)
    try:
        clones = {name: Path(path) for name, _, path in (text.partition("=") for text in options.clones)}
        names = {source.repository for source in SOURCES}
        if unread := clones.keys() - names:
            raise ConfigError(f"{min(unread)} is not read; type one of {', '.join(sorted(names))}")
        write(options.out, collect(clones, options.also, options.held_out, options.passages))
    except DrafterforgeError as error:
        print(f"natural_prompts: {error}", file=sys.stderr)
        return 2
    except (LookupError, TypeError, ValueError, OSError) as error:
        print(f"natural_prompts: a line or a file cannot be read: {error!r}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
