"""README and docs match the code: commands compose, Python blocks compile, links, paths and names exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import drafterforge
from drafterforge.assembly.text import GenerationOptions
from drafterforge.cli import COMMANDS, HELP
from drafterforge.cli.overrides import read_config, split_drafters
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import Cycle, Generation
from tests.models import tiny_drafter, tiny_target

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "drafterforge").rglob("README.md")])
OTHER_PROGRAMS = {"curl", "git", "optimum-cli", "pip", "pytest", "sglang", "srun", "torchrun", "vllm"}
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`((?:drafterforge |python scripts/|scripts/|make )[^`]*)`(?!`)")
PATH = re.compile(r"(?<!`)`((?:drafterforge|pipelines|configs|tests|scripts|docs)/[\w./-]*)`(?!`)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
INCLUDE = re.compile(r'^--8<-- "([^":]+)(?::([\w-]+))?"$', re.MULTILINE)  # pymdownx.snippets: a file or its part
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)  # mkdocstrings
DIAGRAM_ROOMS = re.compile(r"^(\w+(?: \| \w+)*) {2,}", re.MULTILINE)


class Command(NamedTuple):
    """A command of a page."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def commands_of(text: str) -> list[tuple[str, ...]]:
    """The commands of a bash block, without variables, comments and redirections."""
    commands, variables = [], {}
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, "&&"]:
            if word in ("&&", "||", "|", ";", "&"):
                if words:
                    commands.append(tuple(words))
                words = []
            elif not words and re.fullmatch(r"[A-Z_]+=.*", word):
                name, _, value = word.partition("=")
                variables[name] = value
            elif word.startswith("$"):
                words += shlex.split(variables[word[1:]])
            else:
                words.append(word)
    return commands


def all_commands() -> list[Command]:
    """The commands of all pages, each once."""
    commands: dict[tuple[str, ...], Command] = {}
    for path in PAGES:
        text = path.read_text()
        blocks = [block for language, block in BLOCK.findall(text) if language == "bash"]
        spans = [" ".join(code.split()) for code in INLINE.findall(BLOCK.sub("", text))]
        inline = [code for code in spans if not re.search(r"\.\.\.|[A-Z]{4,} |<", code)]
        for words in [words for block in [*blocks, *inline] for words in commands_of(block)]:
            commands.setdefault(words, Command(page_name(path), words))
            if words[0] in ("srun", "torchrun") and "drafterforge" in words:
                words = words[words.index("drafterforge") :]
                commands.setdefault(words, Command(page_name(path), words))
    return list(commands.values())


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def script_of(words: tuple[str, ...]) -> str:
    """The file that a command runs."""
    return words[1] if words[0] in ("python", "bash", ".") else words[0]


COMMANDS_OF_PAGES = all_commands()
OURS = [command for command in COMMANDS_OF_PAGES if command.words[0] == "drafterforge"]
TOOL_COMMANDS = [command for command in COMMANDS_OF_PAGES if command.words[0] != "drafterforge"]


def test_the_pages_have_commands():
    assert len(OURS) > 40 and len(TOOL_COMMANDS) > 10


@pytest.mark.parametrize("page", dict.fromkeys(command.page for command in OURS))
def test_every_command_of_ours_composes(page):
    for command in OURS:
        if command.page == page and len(command.words) > 1:
            compose(command)


def compose(command: Command) -> None:
    """Compose its settings as the command line does; files that it names may be absent."""
    name, *overrides = command.words[1:]
    assert name in COMMANDS or name in (*HELP, "--version"), command
    if name not in COMMANDS or HELP & set(overrides):
        return
    try:
        for entry in split_drafters(COMMANDS[name], overrides):
            read_config(name, entry)
    except drafterforge.errors.DrafterforgeError as error:
        pytest.fail(f"{command}\n{error}")


@pytest.mark.parametrize("command", TOOL_COMMANDS, ids=str)
def test_every_other_command_runs_something_that_is_there(command):
    program = command.words[0].rpartition("/bin/")[2]  # also of an environment of its own
    if command.words[:2] == ("python", "-m"):
        program = command.words[2].partition(".")[0]
    if program == "make":
        assert set(command.words[1:]) <= make_targets()
    elif program not in OTHER_PROGRAMS and script_of(command.words) != ".venv/bin/activate":
        assert script_of(command.words).startswith("scripts/"), command
        assert (ROOT / script_of(command.words)).is_file(), command


def python_blocks() -> list[tuple[str, str]]:
    """A name and the text of each; included parts of files are code that other tests run."""
    blocks = [(page_name(path), block) for path in PAGES for kind, block in BLOCK.findall(path.read_text())
              if kind == "python" and not INCLUDE.search(block)]  # fmt: skip
    return [(f"{page} {number}", block) for number, (page, block) in enumerate(blocks)]


@pytest.mark.parametrize("block", [block for _, block in python_blocks()], ids=[name for name, _ in python_blocks()])
def test_every_python_block_compiles_and_its_names_exist(block):
    tree = ast.parse(block)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert importlib.util.find_spec(alias.name), alias.name
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "drafterforge":
            assert hasattr(drafterforge, node.attr), node.attr


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_every_path_of_the_repository_is_there(path):
    names = [name for name in PATH.findall(BLOCK.sub("", path.read_text())) if "NAME" not in name]
    assert [name for name in names if not (ROOT / name).exists()] == []


@cache
def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    text = INCLUDE.sub(lambda match: (ROOT / match[1]).read_text(), BLOCK.sub("", path.read_text()))
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_every_link_leads_somewhere(path):
    for link in LINK.findall(BLOCK.sub("", path.read_text())):
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        page = (path.parent / file).resolve() if file else path
        assert page.exists(), link
        assert not anchor or anchor in anchors(page), link


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_every_included_part_and_documented_name_exists(path):
    text = path.read_text()
    for file, part in INCLUDE.findall(text):
        content = (ROOT / file).read_text()
        assert not part or all(content.count(f"# --8<-- [{end}:{part}]") == 1 for end in ("start", "end")), (file, part)
    for name in DIRECTIVE.findall(text):
        module, _, attribute = name.rpartition(".")
        if importlib.util.find_spec(module).submodule_search_locations and importlib.util.find_spec(name):
            continue
        assert hasattr(importlib.import_module(module), attribute), name


def test_the_public_api_is_documented():
    page = (ROOT / "docs" / "api.md").read_text()
    members = re.findall(r"members: \[(.*)\]", page)
    names = {name.rpartition(".")[2] for name in DIRECTIVE.findall(page)} | {*", ".join(members).split(", ")}
    assert {*drafterforge.__all__} <= names
    for fields, heading in (
        (GenerationOptions.__annotations__, "Generation options"),
        ([*Generation.__dataclass_fields__, "mat", *Cycle.__dataclass_fields__], "Answers"),
    ):
        rows = re.findall(r"^\| (`.*?`) \|", page.split(f"## {heading}\n")[1].split("\n## ")[0], re.MULTILINE)
        assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(fields)


def test_the_architecture_page_has_the_rooms_in_their_order():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    diagram = (ROOT / "docs" / "architecture.md").read_text().split("```text\n")[1]
    assert DIAGRAM_ROOMS.findall(diagram.split("```")[0]) == layers


README = (ROOT / "README.md").read_text()


def test_the_readme_is_one_short_page():
    lines = README.splitlines()
    assert len(lines) <= 200 and len(README.encode()) <= 12_000
    first_answer = next(number for number, line in enumerate(lines) if line.startswith("drafterforge generate"))
    assert first_answer < 40


def test_every_headline_figure_stands_in_the_results():
    rows = re.findall(r"^\| \[.*\]\(docs/results\.md#([\w-]+)\) \| (.*?) \| `(.*)` \|$", README, re.MULTILINE)
    assert 1 <= len(rows) <= 8
    results = (ROOT / "docs" / "results.md").read_text()
    sections = {re.sub(r"[^\w\- ]", "", part.split("\n")[0].lower()).replace(" ", "-"): part
                for part in results.split("\n## ")}  # fmt: skip
    for anchor, value, command in rows:
        for number in value.split(", "):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", sections[anchor]), (anchor, number)
        assert set(command.split()) <= set(re.split(r"\s", sections[anchor])), (anchor, command)


def test_the_scheduler_of_the_page_is_complete_and_lossless():
    blocks = [block for kind, block in BLOCK.findall((ROOT / "docs" / "extending.md").read_text()) if kind == "python"]
    names: dict = {}
    exec(next(block for block in blocks if "class Alternating" in block), names)
    target = tiny_target()
    pool = Pool({"general": FusedDrafter(tiny_drafter(target), target.backbone.embedding)}, "static",
                scheduler=names["Alternating"]())  # fmt: skip
    answer = Engine(target, pool).generate([[5, 6, 7, 8]], 24)[0]
    assert answer.tokens == Engine(target).generate([[5, 6, 7, 8]], 24)[0].tokens
    assert {4, 8} <= {cycle.num_nodes for cycle in answer.cycles}
