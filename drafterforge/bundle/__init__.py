"""A bundle: everything that decoding needs, in one folder that any machine can open and check."""
