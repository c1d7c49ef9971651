"""Metrics, reports and tables over decoded prompts."""
