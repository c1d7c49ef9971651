"""Open drafters, pools and engines from names, folders or bundles."""
