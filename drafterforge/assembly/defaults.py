"""The drafter that `drafter=auto` stands for."""

from __future__ import annotations

from drafterforge.artifacts.manifest import Manifest
from drafterforge.assembly.pools import retrieval_for
from drafterforge.assembly.runs import GENERAL, RunsFolder, domain_of, kind_of
from drafterforge.config.names import JOINT
from drafterforge.drafters.registry import kind_named

AUTO = "auto"  # value of `drafter=`


def default_drafter(runs: RunsFolder) -> str:
    """The name of the drafter that `drafter=auto` stands for; empty for plain decoding.

    On a CPU it is the generalist with retrieval in its trees, `general+store` if that datastore is shipped, or the
    first EAGLE-3 drafter if there is no generalist. `auto_engine` decides in every cycle how much of both drafts.
    Elsewhere the costs of such trees are not measured; it is the generalist alone, which runs as CUDA graphs.

    Without an EAGLE-3 drafter, a CPU uses a datastore; otherwise the target decodes plainly: retrieval from the text
    alone and small language models were not timed on targets without our drafters.
    """
    manifests = {name: Manifest.read(runs.find(name)) for name in runs.names()}
    kinds = {name: kind_named(kind_of(manifest)) for name, manifest in manifests.items()}
    domains = {name: domain_of(manifest) for name, manifest in manifests.items()}
    ranked = sorted(manifests, key=lambda name: (domains[name] != GENERAL, name != GENERAL, runs.rank(name)))
    on_cpu = runs.target.device.type == "cpu"
    if heads := [name for name in ranked if kinds[name].scheduled]:
        return f"{heads[0]}{JOINT}{retrieval_for(runs, ranked, domains[heads[0]])}" if on_cpu else heads[0]
    stores = [name for name in ranked if not kinds[name].needs_files]
    return stores[0] if stores and on_cpu else ""
