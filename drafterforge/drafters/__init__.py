"""Drafter kinds: one folder each, their interface in `base.py`, their list in `registry.py`."""
