"""Hydra groups and one file per command; a YAML holds only what differs from the classes in drafterforge.config."""
