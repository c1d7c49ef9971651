"""File layouts of other programs: SGLang, vLLM, speculators, published EAGLE-3 heads."""
