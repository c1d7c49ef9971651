"""Prompt grammars: a small engine, and one data file per domain with word lists, phrasings and tasks."""
