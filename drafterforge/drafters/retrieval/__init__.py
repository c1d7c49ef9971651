"""Suffix lookup in the text and in a datastore of answers."""
