"""Drafters at work: what each kind knows about the rows being decoded, behind one interface."""
