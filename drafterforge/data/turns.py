"""Conversations of recorded traffic: which answers are turns of one conversation, by their token ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

TURN_TOKENS = 8  # of an answer by which the next turn of its conversation is recognised


def conversations(texts: Iterable[tuple[Sequence[int], int]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Prompt -> the first turn of its conversation.

    A turn begins with the prompt of an earlier turn and the first tokens of an answer to it; a prompt alone may be what
    many conversations have in common, such as instructions.
    texts: token ids of each prompt with its answer, and number of those of the prompt.
    """
    answers = dict[tuple[int, ...], set[tuple[int, ...]]]()
    for ids, start in texts:
        answers.setdefault(tuple(ids[:start]), set()).add(tuple(ids[start : start + TURN_TOKENS]))
    first, beginnings = dict[tuple[int, ...], tuple[int, ...]](), list[tuple[int, ...]]()
    for prompt in sorted(answers):  # a prompt comes right before all that begin with it
        while beginnings and prompt[: len(beginnings[-1])] != beginnings[-1]:
            beginnings.pop()
        earlier = (turn for turn in reversed(beginnings) if continues(prompt[len(turn) :], answers[turn]))
        first[prompt] = first[turn] if (turn := next(earlier, ())) else prompt
        beginnings.append(prompt)
    return first


def continues(tokens: tuple[int, ...], answers: set[tuple[int, ...]]) -> bool:
    """Whether tokens begin with one of these answers."""
    return any(tokens[: len(answer)] == answer for answer in answers)
