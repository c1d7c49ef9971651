"""Prompt grammars: a small engine, and one data file of word lists, phrasings and tasks for each domain."""
