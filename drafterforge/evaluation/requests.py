"""What a suite asks: prompts with what they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field

from drafterforge.data.chat import Message


@dataclass(frozen=True)
class Request:
    """One prompt; later turns hold the target's own earlier answers, which every lossless method gives."""

    tokens: list[int] = field(repr=False)
    domain: str  # of the answer; rows are by domain
    before: str = ""  # domain of the conversation's turn before, if it was another
    question: str = ""  # that it is a turn of, if it came from a file
    turn: int = 0  # of that question
    expert: str = ""  # drafter of the domain; empty: called as the domain
    messages: list[Message] = field(default_factory=list, repr=False)  # that the tokens are of, where they are kept

    @property
    def expert_name(self) -> str:
        """Name of the drafter that was trained for this."""
        return self.expert or self.domain


def spread_over_domains(requests: list[Request], count: int) -> list[int]:
    """Indices of `count` requests, the domains taking turns in the order in which they appear; all if fewer."""
    queues: dict[str, list[int]] = {}
    for index, request in enumerate(requests):
        queues.setdefault(request.domain, []).append(index)
    indices: list[int] = []
    for turn in range(max(map(len, queues.values()), default=0)):
        indices += [queue[turn] for queue in queues.values() if turn < len(queue)]
    return sorted(indices[:count])
