"""One tree of a neural drafter and retrieval."""
