"""Decodes the suite live, in batches, and compares the cycles with the replay and the text with the target's."""

from __future__ import annotations

from typing import Any

from drafterforge.config.progress import bar
from drafterforge.evaluation.lossless import find_mismatches
from drafterforge.evaluation.selector_replay import SelectorReplay
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool


def compare_live_with_replay(replay: SelectorReplay) -> list[dict[str, Any]]:
    """Entries of the curve `live`: each drafter alone, and the pool's selector."""
    engines, suite = _engines(replay), replay.cfg.suite
    prompts = [request.tokens for request in replay.requests]
    checks = []
    with bar("decoding live", len(engines) * len(prompts)) as progress:
        for (name, engine), replayed in zip(engines.items(), replay.pool_cycles().values(), strict=True):
            engine.max_batch = suite.batch_size
            answers = engine.generate(prompts, suite.max_new_tokens, replay.suite.samplings(0, len(prompts)))
            progress.advance(len(prompts), name)
            live = [len(answer.cycles) for answer in answers if answer.cycles]
            mismatches = find_mismatches(name, engine.target, answers, replay.answers)
            checks.append(
                {
                    "method": name,
                    "num_cycles": sum(live),
                    "replayed_cycles": sum(map(len, replayed)),
                    "requests_with_other_cycles": sum(a != len(b) for a, b in zip(live, replayed, strict=True)),
                    "other_text": [mismatch.as_dict() for mismatch in mismatches],
                }
            )
    return checks


def _engines(replay: SelectorReplay) -> dict[str, Engine]:
    """Each drafter alone and the pool's selector, without a scheduler."""
    pool, target, shape = replay.pool, replay.factory.target, replay.factory.shape
    engines, numerics = {}, replay.cfg.runtime.numerics
    for name, drafter in pool.drafters.items():
        shapes = {name: pool.shapes[name]} if name in pool.shapes else {}
        alone = Pool({name: drafter}, "static", drafter=name, shapes=shapes)
        engines[name] = Engine(target, alone, shape, numerics=numerics)
    selected = Pool(
        pool.drafters, replay.cfg.pool.selector_name, shapes=pool.shapes, router=pool.router, **pool.options
    )
    return engines | {replay.cfg.pool.selector_name: Engine(target, selected, shape, numerics=numerics)}
