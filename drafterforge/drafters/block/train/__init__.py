"""Training of block drafters."""
