"""vLLM: exports of single drafters in its layouts, and a plug-in that lets it decode with a whole pool.

`layouts` writes single drafters.  The other modules are the plug-in, in the order in which a cycle uses them: `plugin`
installs it, `engine_arguments` takes a bundle as draft model and refuses wrong settings, `pool_folder` is what vLLM
opens, `model` runs the pool's drafters on vLLM's attention, `judging` compares their proposals with the committed
tokens, `selection` learns and chooses, `proposer` drafts in vLLM's V1 runner, `speculator` in its V2 runner.  On a CPU
`reading` says which rows the drafters read and when, `lookups` continues texts, `hybrids` decides between a looked-up
and a drafted chain, and `draft_length` how much is drafted.  `metrics` counts cycles, `capture` records traffic.

`streaming` and `extraction` need no pool: with them vLLM answers prompts and streams answers and features to a trainer.
"""
