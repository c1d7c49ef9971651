"""Bundles: one folder with everything that decoding needs except the target's weights, checked when it is opened."""
