"""Numeric building blocks shared by target and drafter: linear, norm, rope, attention, key-value cache."""
