"""Folders that one command hands the next: whole or absent, named and hashed by a manifest."""
