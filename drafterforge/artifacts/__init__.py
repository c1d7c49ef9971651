"""Artifacts: the folders that one command writes and the next reads, each with a manifest that hashes its files."""
