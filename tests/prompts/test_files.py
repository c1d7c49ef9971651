"""A grammar file is read as written, and its author's mistakes are named in a line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from drafterforge.errors import ConfigError
from drafterforge.prompts.expressions import compile_expression
from drafterforge.prompts.files import lines, read_yaml
from drafterforge.prompts.grammar import Grammar
from drafterforge.prompts.templates import Record, fill

README = Path(__file__).parents[2] / "drafterforge" / "prompts" / "README.md"


def evaluated(source: str, **values):
    return compile_expression(source, {"ages": [6, 7]})(values, random.Random(0))


def write(tmp_path: Path, text: str) -> Grammar:
    path = tmp_path / "shop.yaml"
    path.write_text(text)
    return Grammar.open("shop", path)


def test_the_example_of_the_readme_writes_what_it_says(tmp_path):
    shop = write(tmp_path, README.read_text().split("```yaml\n")[1].split("```")[0])
    assert list(shop.writers) == ["repair: chain", "repair: inner tube", "price: chain", "price: inner tube"]
    texts = {shop.writers["repair: inner tube"](random.Random(str(seed))) for seed in range(300)}
    assert texts == {"An inner tube is broken. What now?" + end for end in ("", " Keep it short.")} | {
        f"How do I replace the inner tube? I have {minutes} minutes.{end}"
        for minutes in (2, 3, 4, 5)
        for end in ("", " Keep it short.")
    }
    for seed in range(20):
        words = shop.writers["price: chain"](random.Random(seed)).split("$")
        price, total = (int(word.split()[0]) for word in words[1:])
        assert total == price * int(words[0].split()[2])


def test_a_block_is_a_list_of_lines_some_of_which_count_more_than_once():
    assert lines("3x\n2x Hi\\nthere\n\n  once  \n") == ["", "", "", "Hi\nthere", "Hi\nthere", "once"]


def test_a_template_fills_slots_as_english():
    table = Record("loans", row="loan")
    values = {"topic": "apple pie", "price": 2.5, "table": table}
    assert (
        fill("{Topic}, {a topic}; {A topic}: {price:.2f} {{x}}", values)
        == "Apple pie, an apple pie; An apple pie: 2.50 {x}"
    )
    assert fill("{table} {table.row}", values) == "loans loan"


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("(n * price // 10 + 1) * 10", 20),
        ('"old" if n > 2 and not n == 4 else "new"', "old"),
        ("ages[0] + ages[-1]", 13),
        ("ages[1:]", [7]),
        ("max(n, 2 ** n) % 5", 3),
        ('pair.first + " " + str(n in ages)', "a False"),
        ('fill("{n} {price}")', "3 4"),
    ],
)
def test_an_expression_is_worked_out(source, value):
    assert evaluated(source, n=3, price=4, pair={"first": "a"}) == value


@pytest.mark.parametrize(
    "source",
    [
        "__import__('os').system('true')",
        "open('x')",
        "().__class__.__bases__",
        "text.__class__",
        "text.upper()",
        "[n for n in ages]",
        "(lambda: 1)()",
        "n := 2",
        "10 ** 10 ** 10",
        "max(*ages)",
        "f'{n}'",
        "unknown",
        "1 +",
    ],
)
def test_an_expression_reaches_nothing_but_slots_lists_and_functions(source):
    with pytest.raises(ConfigError):
        evaluated(source, n=1, text="a")


def test_a_template_reaches_no_attribute_of_python():
    for template in ("{text.__class__}", "{text[0]}", "{text!r}{text.upper}", "{0}"):
        with pytest.raises((ConfigError, AttributeError)):
            fill(template, {"text": "a"})


MISTAKES = {
    "tasks: [": "is not YAML",
    "lists: {}": "has no tasks",
    "tasks:\n  - {task: a, asked: [b]}": "no key 'asked'",
    "tasks:\n  - {task: '{topic}', for: {topic: topics}, asks: [b]}": "no slot and no list is called 'topics'",
    "lists: {pairs: [a]}\ntasks:\n  - {task: '{a}', for: {a | b: pairs}, asks: [b]}": "has 1 cells, wanted 2: a, b",
    "tasks:\n  - {task: a, asks: ['{b}']}": "no slot is called 'b'",
    "tasks:\n  - {task: a, asks: ['{b']}": "write {{ and }} for braces",
    "tasks:\n  - {task: a, asks: [b], draw: {n: '= nosuch(3)'}}": "no function is called 'nosuch'",
    "tasks:\n  - {task: a, asks: [b], draw: {n: '= 1 / 0'}}": "ZeroDivisionError",
    "tasks:\n  - {task: a, asks: [b]}\n  - {task: a, asks: [c]}": "has the task 'a' twice",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_a_grammar_is_named_in_a_line(tmp_path, text):
    with pytest.raises(ConfigError) as error:
        shop = write(tmp_path, text)
        [writer(random.Random(0)) for writer in shop.writers.values()]
    assert MISTAKES[text] in str(error.value) and "\n" not in str(error.value)


def test_a_grammar_makes_no_python_object(tmp_path):
    path = write(tmp_path, "tasks: !!python/object/apply:os.getcwd []")
    with pytest.raises(ConfigError, match="not YAML"):
        path.writers  # noqa: B018


def test_a_grammar_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        Grammar.open("shop", tmp_path / "none.yaml").writers  # noqa: B018


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}' if n else 'x'] * 10)}]\n" for n in range(9)),
            "1,000,000 values",
        ),
        ("[" * 900 + "]" * 900, "nested too deeply"),
    ],
)
def test_a_grammar_that_would_fill_the_memory_is_one_line(tmp_path, text, reason):
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_yaml(path)


def test_a_mistake_in_a_long_text_is_quoted_in_part(tmp_path):
    text = "a {" + "[" * 5000
    with pytest.raises(ConfigError) as error:
        _ = write(tmp_path, f"tasks:\n- task: '{text}'\n  asks: [count]\n").writers
    assert len(str(error.value)) < 600 + len(str(tmp_path))
