"""The turns of a recorded conversation are in one split."""

from __future__ import annotations

from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.data.answers import Answer
from drafterforge.data.prompts import SPLITS, load_prompts
from drafterforge.data.served import ServedAnswer, write_shard

NUM_TURNS, TURN = 4, 12  # turns of a conversation, and tokens of each prompt and answer


def turns(number: int) -> list[ServedAnswer]:
    """A conversation, whose turns begin with the turn before and its answer."""
    ids = [number, *range(100, 100 + 2 * NUM_TURNS * TURN)]
    ends = [2 * turn * TURN + TURN for turn in range(NUM_TURNS)]
    return [
        ServedAnswer(
            Answer(f"{number}-{end}", "", "", "train", ids[: end + TURN], [0] * end + [1] * TURN, end, TURN, True)
        )
        for end in ends
    ]


def test_the_turns_of_a_conversation_are_in_one_split(tmp_path):
    for number in range(24):
        write_shard(tmp_path, f"shard-{number:08d}", turns(number))
    data = DataConfig(source="recorded", path=str(tmp_path), answers="given")
    prompts = load_prompts(data, DomainConfig(name="traffic", grammar=False), 0)
    begun = [{prompt.transcript.ids[0] for prompt in prompts[split]} for split in SPLITS]
    assert sum(map(len, prompts.values())) == 24 * NUM_TURNS
    assert all(begun) and sum(map(len, begun)) == 24
