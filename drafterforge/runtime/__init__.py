"""The lossless draft/verify engine: prefill, draft, verify, commit."""
