"""What decodes where nobody chooses: `drafter=auto`."""

from __future__ import annotations

from drafterforge.artifacts.manifest import Manifest
from drafterforge.assembly.pools import retrieval_of
from drafterforge.assembly.runs import GENERAL, RunsFolder, domain_of, kind_of
from drafterforge.config.names import JOINT
from drafterforge.drafters.registry import kind_named

AUTO = "auto"  # what `drafter=` says for the choice below


def default_drafter(runs: RunsFolder) -> str:
    """The name of the drafter that `drafter=auto` stands for; empty for plain decoding.

    On a CPU it is the generalist with retrieval in its trees, `general+store` where that is shipped: of all methods
    timed on a CPU it is among the fastest on the prompts of the grammars (1.84x to 1.91x, docs/reports/domains.json and
    routed.json) and on natural ones (1.90x, natural.json), where the generalist alone gives 1.48x to 1.58x and a pool
    1.40x to 1.47x. The routed pool is equally fast within what prompts differ (1.86x), and needs ten drafters for it.
    On other devices nothing is measured yet; there it is the generalist alone, which runs as CUDA graphs.

    Without a generalist the first EAGLE-3 drafter takes its place, without one on a CPU a datastore (1.77x and 1.79x in
    the same reports). Plain decoding is the choice where there is neither: retrieval from the text alone and small
    language models were not timed on targets without drafters of ours.
    """
    manifests = {name: Manifest.read(runs.find(name)) for name in runs.names()}
    kinds = {name: kind_named(kind_of(manifest)) for name, manifest in manifests.items()}
    domains = {name: domain_of(manifest) for name, manifest in manifests.items()}
    in_order = sorted(manifests, key=lambda name: (domains[name] != GENERAL, name != GENERAL, runs.rank(name)))
    on_cpu = runs.target.device.type == "cpu"
    if heads := [name for name in in_order if kinds[name].scheduled]:
        return f"{heads[0]}{JOINT}{retrieval_of(runs, in_order, domains[heads[0]])}" if on_cpu else heads[0]
    stores = [name for name in in_order if not kinds[name].needs_files]
    return stores[0] if stores and on_cpu else ""
