"""The opener: names, folders or bundles become drafters, pools and engines."""
