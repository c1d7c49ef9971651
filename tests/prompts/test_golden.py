"""The first prompts of every domain with a grammar never change: answers, drafters and figures were made with them."""

from __future__ import annotations

from hashlib import sha256

import pytest

from drafterforge.prompts.grammar import draw_prompts

# sha256 of the first 1,000 prompts and their tasks at seed 0, of each split.
GOLDEN = {
    "sql": {"train": "080dc60eb468ea6b", "val": "0c99a606b6b1593b", "test": "8cb3119add01479d"},
    "python": {"train": "e29408c9aaca5353", "val": "af71f34f2621d4ee", "test": "dae5fb2f28f0b6a6"},
    "math": {"train": "b4a20f8176562715", "val": "4ad724ad93d7175f", "test": "fa454fd06216df09"},
    "chat": {"train": "cbc75646e59dca43", "val": "ba4cd9bdec9ed2f3", "test": "77db85e0d48dcd57"},
    "science": {"train": "f102b174c2463c50", "val": "09a549a4fa538df0", "test": "221f6460ccc0adbf"},
    "medical": {"train": "8be7a7ae502faf59", "val": "5d5d203c1615e406", "test": "8cbafa6b70a56f14"},
    "summarization": {"train": "3fc09c5ce64de1d8", "val": "ea94bfa056434ab0", "test": "54c473006eeb22b5"},
    "translation": {"train": "c9ab98966ca68bf6", "val": "891e9004b6c9cbc2", "test": "bb1933f7c3424325"},
}


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize("domain", GOLDEN)
def test_the_first_thousand_prompts_of_a_domain_stay_the_same(domain, split):
    draws = draw_prompts(domain, split, 1000, seed=0)
    digest = sha256("\0".join(f"{draw.task}\t{draw.text}" for draw in draws).encode()).hexdigest()
    assert digest.startswith(GOLDEN[domain][split])
