"""Prompts by domain, the target's answers, and features captured from them."""
