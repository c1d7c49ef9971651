"""SGLang: exports of single drafters in its layout, and a plug-in that lets it decode with a whole pool.

`layout` writes single drafters.  The other modules are the plug-in, which was written against the source of SGLang
0.5.23 and never run: `plugin` installs it, `settings` reads how to serve, `model` runs the pool's drafters on SGLang's
attention, `worker` drafts.  The pool's folder, judging and selection are those of `drafterforge.interop.vllm`.
"""
