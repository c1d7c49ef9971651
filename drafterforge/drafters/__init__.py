"""EAGLE-3 drafters: architecture, draft vocabulary, initialisation, checkpoints."""
