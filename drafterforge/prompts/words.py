"""English for prompts: articles, singulars, verbs, lists."""

from __future__ import annotations

import re
from collections.abc import Iterable

VOWEL_SOUND = ("hour", "honest", "heir", "8", "11", "18", "mri ", "fbi ")
IE_WORDS = {"movies", "cookies", "pies", "ties", "calories", "smoothies", "brownies", "hoodies"}
CONSONANT_SOUND = ("uni", "use", "usa", "usu", "eu", "one", "once", "ukulele", "ute", "url")


def an(noun: str) -> str:
    """Add the indefinite article: an apple, a user, an hour."""
    word = noun.lower()
    vowel = word[0] in "aeiou" and not word.startswith(CONSONANT_SOUND)
    return f"{'an' if vowel or word.startswith(VOWEL_SOUND) else 'a'} {noun}"


def the(noun: str) -> str:
    """Replace an indefinite article by the definite one."""
    return re.sub("^an? ", "the ", noun)


def singular(plural: str) -> str:
    """The singular of a regular plural: cities -> city, matches -> match, loans -> loan."""
    if plural.endswith("ies") and plural.split()[-1] not in IE_WORDS:
        return plural[:-3] + "y"
    if plural.endswith(("sses", "ches", "shes", "xes")):
        return plural[:-2]
    return plural.removesuffix("s")


def capital(text: object) -> str:
    """The text with its first letter in upper case."""
    text = str(text)
    return text[:1].upper() + text[1:]


def uncapital(text: str) -> str:
    """The text with its first letter in lower case."""
    return text[:1].lower() + text[1:]


def third_person(sentence: str) -> str:
    """`return the sum ... and name it` as `returns the sum ... and names it`, for known verbs."""
    verb, rest = sentence.split(" ", 1)
    rest = re.sub(r"\b(and|but) (add|raise|keep|return|name|reject)\b", r"\1 \2s", rest)
    verb = f"{verb[:-1]}ie" if verb.endswith("ly") else verb
    return f"{verb}{'es' if verb.endswith(('s', 'x', 'sh', 'ch')) else 's'} {rest}"


def lettered(items: Iterable[str], mark: str) -> str:
    """The items, capitalised, one per line after A, B, C ...  mark: template of the letter, such as `{}) `."""
    return "\n".join(mark.format(letter) + capital(item) for letter, item in zip("ABCDEFGH", items, strict=False))


def bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def enumeration(items: list[str], word: str = "and") -> str:
    """`a, b and c`, or with semicolons if an item contains a comma or `and`."""
    if any(mark in item for item in items for mark in (" and ", ", ")):
        return f"{'; '.join(items[:-1])}; {word} {items[-1]}"
    return f"{', '.join(items[:-1])} {word} {items[-1]}"


def fence(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```"


def indented(text: str) -> str:
    """Indent the text's non-blank lines by four spaces."""
    return "\n".join(f"    {line}" if line else "" for line in text.split("\n"))
