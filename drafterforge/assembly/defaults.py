"""The drafters that `drafter=auto` stands for."""

from __future__ import annotations

from drafterforge.assembly.pools import retrieval_for
from drafterforge.assembly.runs import GENERAL
from drafterforge.assembly.sources import PoolSource
from drafterforge.config.names import JOINT, domain_of, parse_hybrid, parts_of
from drafterforge.config.progress import say
from drafterforge.drafters.registry import kind_named
from drafterforge.errors import ArtifactError


def default_drafters(source: PoolSource) -> list[str]:
    """The drafters that `drafter=auto` stands for; none for plain decoding.

    On a CPU they are the generalist, or the first EAGLE-3 drafter if there is no generalist, and the experts that are
    not known to be useless, each with retrieval in its trees. Of a bundle only those are taken that `export` was told.
    `auto_engine` decides in every cycle which of them drafts and how much. Elsewhere the costs of such trees are not
    measured; it is the generalist alone, which runs as CUDA graphs.

    Without an EAGLE-3 drafter, a CPU uses a datastore; otherwise the target decodes plainly: retrieval from the text
    alone and small language models were not timed on targets without our drafters.
    """
    on_cpu, named, unproven = source.target.device.type == "cpu", source.named(), source.unproven()
    summaries = [
        drafter
        for drafter in source.summaries()
        if JOINT not in drafter.name and (not named or drafter.name in parts_of(named))
    ]
    ranked = sorted(summaries, key=lambda drafter: (drafter.domain != GENERAL, drafter.name != GENERAL))
    neural = [drafter for drafter in ranked if kind_named(drafter.kind).scheduled]
    order = [drafter.name for drafter in neural]
    if hybrids := [name for name in named if parse_hybrid(name) and domain_of(name) in order]:
        hybrids.sort(key=lambda name: order.index(domain_of(name)))
        return hybrids if on_cpu else [domain_of(hybrids[0])]
    if neural and on_cpu:
        retrieval = retrieval_for(ranked, neural[0].domain)
        experts = [
            drafter.name for drafter in neural[1:] if drafter.name not in unproven and opens(source, drafter.name)
        ]
        return [f"{name}{JOINT}{retrieval}" for name in (neural[0].name, *experts)]
    if neural:
        return [neural[0].name]
    stores = [drafter.name for drafter in ranked if not kind_named(drafter.kind).needs_files]
    return stores[:1] if on_cpu else []


def opens(source: PoolSource, name: str) -> bool:
    """Whether the files of a drafter are all there; prints one line if not."""
    try:
        source.drafter(name)
    except ArtifactError as error:
        if not source.quiet:
            say(f"drafter=auto leaves out {name}: {error}")
        return False
    return True
