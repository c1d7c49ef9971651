"""An OpenAI-compatible HTTP server of an engine; needs the extra `serve`."""
