"""SGLang: exports of single drafters in its layout."""
