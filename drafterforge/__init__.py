"""Distil, schedule and serve domain-expert EAGLE-3 drafters."""

__version__ = "0.1.0"
