"""Random texts that requests of a V2 runner write, checked cycle by cycle against a loop that keeps no cache.

Axes: R rows of a request in a cycle, H hidden of the target, L tokens of the longest text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.drafters.eagle3.fused import FusedDrafter
from tests.interop import vllm_v2

NAMES, DEPTH, LENGTH, MOST = ["general", "sql", "chat", "code"], 3, 96, 3


class LeaderSelector:
    """Chooses the drafter with the most hits, and records what it learns from."""

    def __init__(self, num_drafters: int, num_slots: int, device: torch.device) -> None:
        self.totals = torch.zeros(num_slots, num_drafters, dtype=torch.float64, device=device)
        self.begun: list[tuple[Tensor, Tensor | None]] = []
        self.observed: list[tuple[Tensor, ...]] = []
        self.ended: list[Tensor] = []
        self.dropped: list[Tensor] = []

    def begin(self, slots: Tensor, advice: Tensor | None = None) -> None:
        self.begun.append((slots, advice))
        self.totals.index_fill_(0, slots, 0.0)

    def choose(self, slots: Tensor, allowed: Tensor) -> Tensor:
        return torch.where(allowed, self.totals[slots], -torch.inf).argmax(dim=-1)

    def observe(self, slots: Tensor, hits: Tensor, counts: Tensor, depths: Tensor) -> None:
        self.observed.append((slots, hits, counts, depths))
        is_judged = torch.arange(hits.shape[2], device=counts.device) < counts[:, None]
        self.totals.index_add_(0, slots, (hits & is_judged[:, None]).sum(dim=2).double())

    def drop(self, slots: Tensor) -> None:
        self.dropped.append(slots)

    def end(self, slots: Tensor) -> None:
        self.ended.append(slots)


@dataclass
class Request:
    """A text that a random target writes."""

    req_id: str
    tokens: list[int]  # committed, the prompt first
    features: Tensor  # of the target at all positions, [L, 3H]
    prompt_len: int
    sampling_params: Any = None
    computed: int = 0  # tokens that the target processed
    drafts: list[int] = field(default_factory=list)
    hits: dict[int, list[int]] = field(default_factory=dict)  # hits of each drafter, by judged position
    totals: list[int] = field(default_factory=lambda: [0] * len(NAMES))


def new_request(name: str, length: int, width: int, hint: str = "") -> Request:
    """A request with a random prompt."""
    prompt = torch.randint(0, 61, (length,)).tolist()
    params = SimpleNamespace(extra_args={"drafter": hint}) if hint else None
    return Request(name, prompt, torch.randn(LENGTH, 3 * width), length, params)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of each row over itself and the rows before it, [R, heads, D]."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def chain(drafter: FusedDrafter, tokens: list[int], features: Tensor, length: int) -> list[int]:
    """The tokens that a drafter drafts after `tokens`, computed without a cache."""
    hidden, inputs, drafted = drafter.fuse(features[: len(tokens) - 1]), tokens[1:], []
    for _ in range(length):
        positions = torch.arange(len(inputs))
        out = drafter.layer(drafter.embed(torch.tensor(inputs)), hidden, positions, causal)
        best = drafter.logits(out[-1:]).argmax(dim=-1)
        drafted.append(int(drafter.token_ids[best]))
        hidden, inputs = torch.cat((hidden, out[-1:])), [*inputs, drafted[-1]]
    return drafted


class Rows(NamedTuple):
    """What the target processed of a request in a cycle."""

    number: int  # vLLM's, of the request
    tokens: list[int]
    positions: list[int]
    features: Tensor  # [R, 3H]
    num_sampled: int
    num_rejected: int


class Server:
    """Runs requests through the speculator, and through the loop that it must equal."""

    def __init__(self, speculator, runner, members: list[FusedDrafter]) -> None:
        self.speculator, self.runner, self.members = speculator, runner, members
        self.selector: LeaderSelector = speculator.selection.selector
        self.last_sampled = torch.zeros(MOST, 1, dtype=torch.long)
        self.next_prefill_tokens = torch.zeros(1, MOST, dtype=torch.int32)
        self.prompts = [0] * MOST  # tokens of the prompts of vLLM's numbers
        self.random = torch.Generator().manual_seed(5)

    def step(self, requests: list[Request], chunk: int = LENGTH, padding: int = 0, rows_across: int = 0) -> list[int]:
        """A cycle of the requests; checks it, and returns the drafters that it chose.

        chunk: most prompt tokens of a request.  padding: rows of no request.  rows_across: rows of later passes.
        """
        rows = [self.process(request, chunk) for request in requests]
        drafted = propose(self, rows, padding, rows_across)
        return [self.check(request, index, drafted[index]) for index, request in enumerate(requests)]

    def process(self, request: Request, chunk: int) -> Rows:
        """Let the target read the prompt, or verify drafted tokens and write the next one."""
        number = self.runner.req_states.req_id_to_index[request.req_id]
        self.prompts[number] = request.prompt_len
        start, end, drafts = request.computed, min(len(request.tokens), request.computed + chunk), request.drafts
        positions = list(range(start, end + len(drafts)))
        tokens, num_sampled = [*request.tokens[start:end], *drafts], 0
        request.computed, request.drafts, request.hits = end, [], {}
        if end < len(request.tokens):
            self.next_prefill_tokens[0, number] = request.tokens[end]
        else:
            length = len(request.tokens)
            for draft in [*drafts, None]:
                request.tokens.append(self.next_token(request))
                if request.tokens[-1] != draft:
                    break
            num_sampled = len(request.tokens) - length
            request.computed += num_sampled - 1
            self.last_sampled[number] = request.tokens[-1]
            self.learn(request, length)
        num_rejected = len(drafts) + 1 - num_sampled if drafts else 0
        return Rows(number, tokens, positions, request.features[positions], num_sampled, num_rejected)

    def next_token(self, request: Request) -> int:
        """What the target writes: mostly what some drafter drafts."""
        index, token = torch.randint(0, 61, (2,), generator=self.random).tolist()
        if index < 8:
            return token
        return chain(self.members[index % len(self.members)], request.tokens, request.features, 1)[0]

    def learn(self, request: Request, before: int) -> None:
        """Judge all drafters on the tokens from position `before` on."""
        for position in range(max(before, request.prompt_len + 1), len(request.tokens)):
            text = request.tokens[:position]
            guesses = [chain(member, text, request.features, 1)[0] for member in self.members]
            request.hits[position] = [int(guess == request.tokens[position]) for guess in guesses]
            request.totals = [sum(pair) for pair in zip(request.totals, request.hits[position], strict=True)]

    def check(self, request: Request, index: int, drafted: list[int]) -> int:
        """Compare a request's hits, choice and drafted tokens with the loop's; returns the choice."""
        hint = (getattr(request.sampling_params, "extra_args", None) or {}).get("drafter")
        choice = NAMES.index(hint) if hint in NAMES else max(range(len(NAMES)), key=lambda arm: request.totals[arm])
        assert int(self.speculator.choice[index]) == choice
        _, hits, counts, _ = self.selector.observed[-1]
        assert hits[index, :, : counts[index]].T.long().tolist() == list(request.hits.values())
        text = request.tokens[: request.computed + 1]
        assert drafted == chain(self.members[choice], text, request.features, DEPTH)
        if len(text) == len(request.tokens) > request.prompt_len:
            request.drafts = drafted
        return choice


def propose(
    server: Server, rows: list[Rows], padding: int, rows_across: int, dummy_run: bool = False
) -> list[list[int]]:
    """What the server's speculator drafts."""
    sizes = [len(part.tokens) for part in rows]
    numbers = torch.tensor([part.number for part in rows])
    tokens = torch.tensor([token for part in rows for token in part.tokens] + [0] * padding)
    positions = torch.tensor([position for part in rows for position in part.positions] + [0] * padding)
    owners = numbers.repeat_interleave(torch.tensor(sizes))
    owners = F.pad(torch.full_like(owners, -1) if dummy_run else owners, (0, padding), value=-1)
    batch = vllm_v2.InputBatch(
        num_reqs=len(rows),
        num_tokens=sum(sizes),
        num_tokens_after_padding=sum(sizes) + padding,
        idx_mapping=numbers,
        query_start_loc=torch.tensor([0, *sizes]).cumsum(0).int(),
        input_ids=tokens.int(),
        positions=positions,
        has_prefill=any(part.positions[0] < server.prompts[part.number] for part in rows),
    )
    features = F.pad(torch.cat([part.features for part in rows]), (0, 0, 0, padding))
    drafted = server.speculator.propose(
        batch,
        dict.fromkeys(vllm_v2.Attention.layers, vllm_v2.Metadata(owners, positions)),
        {},
        None,
        list(features.chunk(3, dim=1)),
        torch.tensor([part.num_sampled for part in rows]),
        torch.tensor([part.num_rejected for part in rows]),
        server.last_sampled,
        server.next_prefill_tokens,
        None,
        None,
        dp_sync_state=rows_across,
        dummy_run=dummy_run,
    )
    return drafted.tolist()
