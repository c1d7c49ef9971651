"""Requests of a suite: prompts with their domains."""

from __future__ import annotations

from dataclasses import dataclass, field

from drafterforge.data.chat import Message


@dataclass(frozen=True)
class Request:
    """One prompt; later turns of a conversation contain the target's earlier answers."""

    tokens: list[int] = field(repr=False)
    domain: str  # of the answer
    before: str = ""  # domain of the previous turn, if it was another
    question: str = ""  # id of its question, if it came from a file
    turn: int = 0  # index within that question
    expert: str = ""  # name of the domain's drafter; empty: the name of the domain
    messages: list[Message] = field(default_factory=list, repr=False)  # empty where only tokens are needed

    @property
    def expert_name(self) -> str:
        """Name of the drafter that was trained on this domain."""
        return self.expert or self.domain


def spread_over_domains(requests: list[Request], count: int) -> list[int]:
    """Sorted indices of at most `count` requests, as many of each domain as possible."""
    queues: dict[str, list[int]] = {}
    for index, request in enumerate(requests):
        queues.setdefault(request.domain, []).append(index)
    indices: list[int] = []
    for turn in range(max(map(len, queues.values()), default=0)):
        indices += [queue[turn] for queue in queues.values() if turn < len(queue)]
    return sorted(indices[:count])
