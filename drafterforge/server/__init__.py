"""The engine behind HTTP, as OpenAI's clients speak it; needs the extra `serve`."""
