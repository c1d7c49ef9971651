"""vLLM: exports of single drafters in its layouts, and a plug-in that lets it decode with a whole pool.

`layouts` writes single drafters.  The other modules are the plug-in, in the order in which a cycle uses them: `plugin`
installs it, `pool_folder` is the export that it opens, `model` runs the pool's drafters on vLLM's attention, `judging`
<<<<<<< HEAD
compares their proposals with the committed tokens, `selection` learns and chooses, and `proposer` (V1 runner) or
`speculator` (V2 runner) drafts.
=======
compares their proposals with the committed tokens, `proposer` selects and drafts.  `metrics` shows the pool's totals on
`/metrics`, and `capture` records traffic for training.
>>>>>>> 3f38b0aa8904b88323a60804c9b98665f1b08fc8
"""
