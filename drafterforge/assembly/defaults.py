"""The drafter that `drafter=auto` stands for."""

from __future__ import annotations

from drafterforge.assembly.pools import retrieval_for
from drafterforge.assembly.runs import GENERAL
from drafterforge.assembly.sources import PoolSource
from drafterforge.config.names import JOINT
from drafterforge.drafters.registry import kind_named

AUTO, POOL = "auto", "pool"  # values of `drafter=`


def default_drafter(source: PoolSource) -> str:
    """The name of the drafter that `drafter=auto` stands for; empty for plain decoding.

    On a CPU it is the generalist with retrieval in its trees, `general+store` if that datastore is shipped, or the
    first EAGLE-3 drafter if there is no generalist. `auto_engine` decides in every cycle how much of both drafts.
    Elsewhere the costs of such trees are not measured; it is the generalist alone, which runs as CUDA graphs.

    Without an EAGLE-3 drafter, a CPU uses a datastore; otherwise the target decodes plainly: retrieval from the text
    alone and small language models were not timed on targets without our drafters.
    """
    ranked = sorted(source.summaries(), key=lambda drafter: (drafter.domain != GENERAL, drafter.name != GENERAL))
    on_cpu = source.target.device.type == "cpu"
    for drafter in ranked:
        if kind_named(drafter.kind).scheduled:
            return f"{drafter.name}{JOINT}{retrieval_for(ranked, drafter.domain)}" if on_cpu else drafter.name
    stores = [drafter.name for drafter in ranked if not kind_named(drafter.kind).needs_files]
    return stores[0] if stores and on_cpu else ""
