"""Block drafters: one pass proposes a block of tokens."""
