"""Built-in prompt grammars, one a domain: seeded, deterministic, split by task."""

from __future__ import annotations

from drafterforge.data.grammars import chat, math, medical, python, science, sql, summarization, translation
from drafterforge.data.grammars.base import Draw, Grammar, draw_prompts, split_of

GRAMMARS: dict[str, Grammar] = {
    "sql": Grammar("sql", sql.tasks),
    "python": Grammar("python", python.tasks),
    "math": Grammar("math", math.tasks),
    "chat": Grammar("chat", chat.tasks),
    "science": Grammar("science", science.tasks),
    "medical": Grammar("medical", medical.tasks),
    "summarization": Grammar("summarization", summarization.tasks),
    "translation": Grammar("translation", translation.tasks),
}

__all__ = ["GRAMMARS", "Draw", "Grammar", "draw_prompts", "split_of"]
