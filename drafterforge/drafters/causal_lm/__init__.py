"""Small independent language models as drafters."""
