"""A selector of many requests chooses for each what the selector of one request chooses.

Axes: B rows, N drafters, K levels, P = K + 1 positions.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare

from drafterforge.errors import ConfigError
from drafterforge.selectors import Context, Evaluation, Feedback, names, selector
from drafterforge.selectors.batched import batched_names, batched_selector, learners
from drafterforge.selectors.learners.adanormalhedge import adanormalhedge_probs
from drafterforge.selectors.learners.hedge import hedge_probs
from drafterforge.selectors.learners.normalhedge import normalhedge_probs
from drafterforge.selectors.learners.squint import NODE_WEIGHTS, NODES, PRIORS, squint_probs
from drafterforge.selectors.ucb import UCB1, UCBSpec

N, K, P = 5, 3, 4
DRAFTERS = [f"d{index}" for index in range(N)]
NUM_ROWS, NUM_CYCLES, NUM_SLOTS = 24, 60, 32
SPARE = NUM_SLOTS - 1  # the slot of padding rows
COSTS, LEVELS = [1.0, 0.8, 1.3, 1.1, 0.9], [3, 1, 2, 0, 3]
UNEQUAL = {"costs": COSTS, "levels": LEVELS}
EFFICIENCY = {"reward": "efficiency"}
CASES = [
    ("static", {"drafter": "d2"}),
    ("random", {}),
    ("hedgespec", {}),
    ("hedgespec", UNEQUAL),
    ("hedgespec", {"costs": COSTS, "estimator": "ratio_rb", "draw": "sample", "discounts": [1.0, 0.8]}),
    ("hedgespec", {"objective": "token", "hybrid": False, **UNEQUAL}),
    ("normalhedge_discounted", {}),
    ("normalhedge_discounted", {"costs": COSTS, "estimator": "ratio_rb", "draw": "sample", "discount": 0.9}),
    ("normalhedge_discounted", {"objective": "token", "discount": 1.0, **UNEQUAL}),
    ("normalhedge", {"levels": LEVELS}),
    ("normalhedge", {"objective": "token", "estimator": "ratio"}),
    ("hedge", {"hybrid": True}),
    ("hedge", {"horizon": 100, "discount": 0.9}),
    ("hedge", {"eta": 0.5, "draw": "sample", **UNEQUAL}),
    ("adanormalhedge", {}),
    ("adanormalhedge", {"hybrid": True, "discount": 0.9, **UNEQUAL}),
    ("squint", {}),
    ("squint", {"hybrid": True, "discount": 0.9, **UNEQUAL}),
    ("ftl", {}),
    ("ftl", {"hybrid": True, "discount": 0.9, **UNEQUAL}),
    ("ucb1", {}),
    ("ucb1", {"c": 0.5, **UNEQUAL}),
    ("ucb1_discounted", {}),
    ("ucb1_sliding", {"window": 0}),
    ("ucbspec", {}),
    ("ucbspec", {"scale": 0.1, **UNEQUAL}),
    ("metasd_ucb", {"beta": 0.3, **EFFICIENCY}),
    ("exp3spec", {}),
    ("metasd_exp3", {"scale": 2.0, **UNEQUAL, **EFFICIENCY}),
    ("thompson", {}),
    ("thompson", {"decay": 0.9, **UNEQUAL}),
]
SAMPLED = ("random", "exp3spec", "metasd_exp3", "thompson")


def label(value):
    return value if isinstance(value, str) else "-".join(value) or "default"


class Requests:
    """Concurrent requests, each with its own selector besides the batched one."""

    def __init__(self, name, options, num_drafters=N, depth=K):
        self.name, self.options, self.rng = name, options, np.random.default_rng(0)
        self.num_drafters, self.depth = num_drafters, depth
        self.drafters = [f"d{index}" for index in range(num_drafters)]
        self.batched = batched_selector(name, self.drafters, depth, NUM_SLOTS, **options)
        self.samples = name in SAMPLED or options.get("draw") == "sample"
        self.free = self.rng.permutation(NUM_SLOTS - 1).tolist()
        self.rules, self.positions = {}, {}  # by slot
        self.num_ties = 0
        self.batched.begin(torch.tensor([SPARE]))
        for _ in range(NUM_ROWS):
            self.begin()

    def begin(self):
        slot = self.free.pop()
        self.rules[slot], self.positions[slot] = selector(self.name, self.drafters, self.depth, **self.options), 7
        self.rules[slot].begin(seed=1)
        self.batched.begin(torch.tensor([slot]))

    def end(self, slot):
        self.batched.end(torch.tensor([slot]))
        self.free.insert(0, slot)
        del self.rules[slot]

    def gap(self, slot):
        self.batched.drop(torch.tensor([slot]))
        self.rules[slot].end()  # forgets incomplete rounds
        self.positions[slot] += 2

    def choose(self, slots, allowed):
        """Drafter of each slot, by the batched selector; its own selector must agree."""
        padded = torch.tensor([*slots, SPARE, SPARE])
        mask = None if allowed is None else torch.from_numpy(np.pad(allowed, ((0, 2), (0, 0)), constant_values=True))
        arms, probs = self.batched.choose(padded, mask)[:-2].tolist(), self.batched.probs(padded).numpy()
        choices = []
        for b, slot in enumerate(slots):
            context = Context(0, self.positions[slot], None if allowed is None else allowed[b])
            choices.append(self.rules[slot].select(context))
        assert allowed is None or allowed[np.arange(len(slots)), arms].all()
        if self.name == "thompson":
            return arms
        differ = np.abs(probs[: len(slots)] - [choice.probs for choice in choices]).max(axis=1) > 1e-9
        for b, (slot, arm, choice) in enumerate(zip(slots, arms, choices, strict=True)):
            if self.samples:
                assert choice.probs[arm] > 0 and not differ[b]
            elif differ[b] or arm != choice.drafter:  # rounding errors decide between equal drafters
                scores = self.scores(slot, choice)
                assert scores[arm] == pytest.approx(scores[choice.drafter], rel=1e-12)
                assert not differ[b] or isinstance(self.rules[slot], UCB1 | UCBSpec)
                self.num_ties += 1
        return arms

    def scores(self, slot, choice):
        """Scores by which the selector of a slot made its choice, [N]."""
        rule = self.rules[slot]
        if isinstance(rule, UCB1 | UCBSpec):  # the same mean and count: the same bound
            return rule.sums + 1000 * rule.counts
        return choice.probs

    def observe(self, slots, arms, hits, silent):
        """Let the cycles of `arms` with `hits` [B, N, P] end, except that the rows `silent` [B] commit nothing."""
        depths = self.batched.rule.levels[arms]
        run = (hits[np.arange(len(slots)), arms, : self.depth] >= 0.5) & (np.arange(self.depth) < depths[:, None])
        counts = np.where(silent, 0, 1 + run.cumprod(axis=1).sum(axis=1))
        for b, slot in enumerate(slots):
            if counts[b]:
                rates = hits[b, :, : counts[b]].astype(float)
                evaluation = Evaluation(self.positions[slot], rates, rates)
                cycle = Feedback(arms[b], self.positions[slot], counts[b], depths[b], evaluation=evaluation)
                self.rules[slot].observe(cycle)
                self.positions[slot] += counts[b]
        noise = self.rng.random((2, *hits.shape[1:])) < 0.5  # of the padding rows
        hits = torch.from_numpy(np.concatenate((hits, noise)))
        counts, depths = (torch.tensor([*values, 0, 0]) for values in (counts, depths))
        self.batched.observe(torch.tensor([*slots, SPARE, SPARE]), hits, counts, depths)

    def run(self, num_cycles, soft=False):
        """Decode with rates that drift.  soft: hits are probabilities instead of booleans."""
        rng = self.rng
        for cycle in range(num_cycles):
            slots = rng.permutation(list(self.rules))[rng.integers(0, 6) :].tolist()
            allowed = None
            if cycle % 3 == 0:
                allowed = rng.random((len(slots), self.num_drafters)) < 0.7
                allowed[np.arange(len(slots)), rng.integers(0, self.num_drafters, len(slots))] = True
            arms = self.choose(slots, allowed)
            rates = 0.55 + 0.4 * np.sin(np.arange(self.num_drafters) + cycle / 8)[:, None]
            noise = rng.random((len(slots), self.num_drafters, self.depth + 1))
            hits = noise ** (1 / rates - 1) if soft else noise < rates
            self.observe(slots, arms, hits, rng.random(len(slots)) < 0.15)
            events = rng.random(len(slots))
            for slot, event in zip(slots, events, strict=True):
                if event < 0.05:
                    self.gap(slot)
                elif event > 0.97:
                    self.end(slot)
                    self.begin()


@pytest.mark.parametrize(("name", "options"), CASES, ids=label)
def test_each_request_gets_the_choices_of_its_own_selector(name, options):
    requests = Requests(name, options)
    is_first = next(case for case in CASES if case[0] == name)[1] is options
    num_cycles = NUM_CYCLES if is_first else NUM_CYCLES // 3
    requests.run(num_cycles)
    assert requests.num_ties < 0.03 * NUM_ROWS * num_cycles
    if name == "thompson":
        for slot, rule in requests.rules.items():
            posterior = requests.batched.totals[slot].numpy() + 1
            np.testing.assert_allclose(posterior, [rule.alpha, rule.beta], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("num_drafters", "depth"), [(1, 3), (9, 1), (3, 6)])
def test_pools_of_every_size_and_depth_agree(num_drafters, depth):
    Requests("hedgespec", {}, num_drafters, depth).run(20)


def test_hits_may_be_probabilities():
    requests = Requests("hedgespec", UNEQUAL)
    requests.run(20, soft=True)
    assert requests.num_ties == 0


def test_new_costs_count_at_once():
    requests = Requests("hedgespec", {})
    for costs in (None, COSTS, None):
        requests.run(10)
        requests.options = {"costs": costs}  # of requests that begin later
        requests.batched.costs = None if costs is None else torch.tensor(costs, dtype=torch.float64)
        for rule in requests.rules.values():
            rule.costs = None if costs is None else np.array(costs)
    requests.run(10)
    with pytest.raises(ConfigError, match=r"^costs needs a number for each of 5 drafters, got \[2\]$"):
        requests.batched.costs = [1.0, 2.0]


def test_advice_counts_for_prior_rounds():
    advice = np.array([[0.1, 0.6, 0.1, 0.1, 0.1], [0.2, 0.1, 0.1, 0.1, 0.5]])
    slots = torch.tensor([3, 1])
    for prior in (0, 4):
        batched = batched_selector("hedge", DRAFTERS, K, 4, prior=prior, discount=0.9)
        batched.begin(slots, torch.from_numpy(advice))
        batched.choose(slots)
        for b, probs in enumerate(advice):
            rule = selector("hedge", DRAFTERS, K, prior=prior, discount=0.9)
            rule.advise(probs)
            rule.begin(seed=0)
            np.testing.assert_allclose(batched.probs(slots)[b], rule.probs, rtol=0, atol=1e-9)
        assert (batched.probs(slots).argmax(dim=1).tolist() == [1, 4]) == (prior > 0)


def history(batched, slots, num_cycles, seed=0):
    """Cycles of random hits in all of `slots`; returns the arms and the hits of each cycle."""
    generator = torch.Generator().manual_seed(seed)
    cycles = []
    for _ in range(num_cycles):
        arms = batched.choose(slots)
        hits = torch.rand(len(slots), N, P, generator=generator) < torch.linspace(0.3, 0.8, N)[:, None]
        counts = 1 + hits[torch.arange(len(slots)), arms, :K].long().cumprod(dim=1).sum(dim=1)
        batched.observe(slots, hits, counts, torch.full_like(counts, K))
        cycles.append((arms, hits, counts))
    return cycles


@pytest.mark.parametrize(
    ("name", "options"), [("hedgespec", {}), ("hedge", {}), ("squint", {}), ("ucb1_discounted", {}), ("ucbspec", {})]
)
def test_with_carry_a_request_begins_where_the_last_ended(name, options):
    batched = batched_selector(name, DRAFTERS, K, 3, carry=True, **options)
    rule = selector(name, DRAFTERS, K, carry=True, **options)
    for request in range(4):
        slots, position = torch.tensor([request % 3]), 0
        batched.begin(slots)
        rule.begin(seed=0)
        for arms, hits, counts in history(batched, slots, 12, request):
            assert arms.tolist() == [rule.select(Context(0, position)).drafter]
            rates = hits[0, :, : counts[0]].double().numpy()
            rule.observe(Feedback(int(arms), position, int(counts), K, evaluation=Evaluation(position, rates, rates)))
            position += int(counts)
        batched.end(slots)
        rule.end()
        state = json.loads(json.dumps(batched.state_dict()))
        batched = batched_selector(name, DRAFTERS, K, 3, carry=True, **options)
        batched.load_state_dict(state)


@pytest.mark.parametrize("name", ["normalhedge", "squint", "ucb1", "exp3spec", "thompson"])
def test_with_carry_concurrent_requests_add_what_they_learned(name):
    batched = batched_selector(name, DRAFTERS, K, 3, carry=True)
    slots = torch.tensor([2, 0])
    for _ in range(2):  # both requests begin with what the two before have learned
        before, rounds = batched.carried_totals.clone(), batched.carried_rounds.clone()
        batched.begin(slots)
        history(batched, slots, 20)
        batched.end(slots)
        gains = batched.totals[slots] - before
        assert gains.abs().max() > 0
        torch.testing.assert_close(batched.carried_totals, before + gains.sum(dim=0))
        torch.testing.assert_close(batched.carried_rounds, batched.rounds[slots].sum() - rounds)


def test_with_carry_and_discount_the_rounds_of_later_requests_weigh_more():
    batched = batched_selector("ucb1", DRAFTERS, K, 3, carry=True, discount=0.9)
    slots = torch.tensor([2, 0])
    batched.begin(slots)
    history(batched, slots, 20)
    batched.end(slots)
    expected = 0.9**20 * batched.totals[2] + batched.totals[0]
    torch.testing.assert_close(batched.carried_totals, expected)


def test_without_carry_a_request_begins_blank():
    batched = batched_selector("normalhedge", DRAFTERS, K, 1)
    slots = torch.tensor([0])
    batched.begin(slots)
    history(batched, slots, 20)
    assert batched.probs(slots).max() > 0.5
    batched.end(slots)
    batched.begin(slots)
    batched.choose(slots)
    assert batched.probs(slots).tolist() == [[1 / N] * N]


def test_a_state_of_another_selector_is_refused():
    state = batched_selector("hedge", DRAFTERS, K, 1, carry=True).state_dict()
    for name, drafters, key in (("squint", DRAFTERS, "selector"), ("hedge", DRAFTERS[::-1], "drafters")):
        with pytest.raises(ConfigError, match=f"^this state is of a selector with {key} .*$"):
            batched_selector(name, drafters, K, 1, carry=True).load_state_dict(state)


def crowd(name, num_slots=8000, **options):
    """A selector whose requests all begin with the same sums, and their slots."""
    teacher = batched_selector(name, DRAFTERS, K, 1, carry=True, **options)
    teacher.begin(torch.tensor([0]))
    history(teacher, torch.tensor([0]), 25)
    teacher.end(torch.tensor([0]))
    batched = batched_selector(name, DRAFTERS, K, num_slots, carry=True, seed=1, **options)
    batched.load_state_dict(teacher.state_dict())
    slots = torch.arange(num_slots)
    batched.begin(slots)
    return batched, slots


@pytest.mark.parametrize(
    ("name", "options"), [("random", {}), ("exp3spec", {}), ("squint", {"draw": "sample", "discount": 0.9})]
)
@pytest.mark.parametrize("masked", [False, True])
def test_draws_follow_the_probabilities(name, options, masked):
    batched, slots = crowd(name, **options)
    allowed = (torch.arange(N) != 1).expand(len(slots), -1) if masked else None
    counts = batched.choose(slots, allowed).bincount(minlength=N).numpy()
    probs = batched.probs(slots)[0].numpy()
    assert (counts[probs == 0] == 0).all() and (probs[1] == 0) == masked
    assert chisquare(counts[probs > 0], len(slots) * probs[probs > 0]).pvalue > 1e-3


@pytest.mark.parametrize("rounding", ["fractional", "bernoulli"])
def test_thompson_draws_from_its_posteriors(rounding):
    batched, slots = crowd("thompson", rounding=rounding)
    counts = batched.choose(slots).bincount(minlength=N).numpy()
    alpha, beta = batched.totals[0].numpy() + 1
    assert rounding == "fractional" or (alpha % 1 == 0).all()
    draws = np.random.default_rng(0).beta(alpha, beta, (len(slots), N)).argmax(axis=1)
    expected = np.bincount(draws, minlength=N)
    rare = expected < 5
    table = np.stack([np.append(values[~rare], values[rare].sum() + 1) for values in (counts, expected)])
    assert chi2_contingency(table).pvalue > 1e-3


def test_bernoulli_rewards_are_successes_with_their_probability():
    batched = batched_selector("thompson", DRAFTERS, 4, 20000, rounding="bernoulli")
    slots = torch.arange(20000)
    batched.begin(slots)
    batched.choose(slots)
    counts = torch.full_like(slots, 2)  # one token accepted of four
    batched.observe(slots, torch.zeros(len(slots), N, 5), counts, torch.full_like(slots, 4))
    successes, failures = batched.totals.sum(dim=(0, 2)).tolist()
    assert successes + failures == 20000
    assert chisquare([successes, failures], [5000, 15000]).pvalue > 1e-3


def hard_regrets(num_drafters):
    """Regrets [B, N] that are equal, alone, spread over many scales, almost equal, or not positive."""
    rng = np.random.default_rng(num_drafters)
    powers = rng.random((3000, num_drafters)) ** np.geomspace(0.02, 50, 3000)[:, None]
    steps = (np.arange(num_drafters) < rng.integers(1, num_drafters + 1, (3000, 1))) * rng.random((3000, 1))
    steps[:, 0] = 1.0
    special = np.stack((np.ones(num_drafters), np.zeros(num_drafters), -np.ones(num_drafters)))
    regrets = np.concatenate((powers, steps, special, -special * 1e-12, powers * 1e6, rng.normal(size=powers.shape)))
    return regrets[rng.permutation(len(regrets))[:2000]]


@pytest.mark.parametrize("num_drafters", [1, 2, 3, 9, 64])
def test_a_fixed_number_of_newton_steps_solves_normalhedge(num_drafters):
    regrets = hard_regrets(num_drafters)
    expected = np.stack([normalhedge_probs(row)[0] for row in regrets])
    probs = learners.normalhedge_probs(torch.from_numpy(regrets))
    np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-9)


def test_probabilities_equal_those_of_the_learners():
    rng = np.random.default_rng(0)
    regrets = np.concatenate(
        (rng.normal(scale=5, size=(200, N)), np.zeros((1, N)), -np.ones((1, N)), np.full((1, N), 300))
    )
    sums = np.abs(regrets) + rng.random(regrets.shape)
    sums[-3:] = 0.0
    tensors = torch.from_numpy(regrets), torch.from_numpy(sums)
    nodes = torch.from_numpy(NODES), torch.from_numpy(NODE_WEIGHTS)
    pairs = [
        (learners.hedge_probs(tensors[0], 0.7), hedge_probs(regrets, 0.7)),
        (learners.adanormalhedge_probs(*tensors), adanormalhedge_probs(regrets, sums)),
        *((learners.squint_probs(*tensors, *nodes, prior), squint_probs(regrets, sums, prior)) for prior in PRIORS),
    ]
    for probs, expected in pairs:
        np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "options"), CASES, ids=label)
def test_nothing_waits_for_the_device(name, options):
    """Tensors of the meta device have no values, so reading them fails."""
    batched = batched_selector(name, DRAFTERS, K, NUM_SLOTS, "meta", carry=True, **options)
    slots = torch.empty(8, dtype=torch.int64, device="meta")
    hits = torch.empty(8, N, P, dtype=torch.bool, device="meta")
    batched.begin(slots, torch.empty(8, N, device="meta"))
    for allowed in (None, torch.empty(8, N, dtype=torch.bool, device="meta")):
        arms = batched.choose(slots, allowed)
        assert arms.shape == (8,) and arms.dtype == torch.int64
        assert batched.probs(slots).shape == (8, N)
        batched.observe(slots, hits, slots, slots)
        batched.costs = torch.empty(N, device="meta")
    batched.drop(slots)
    batched.end(slots)


def test_names_are_those_of_the_registry():
    assert set(names()) - set(batched_names()) == {
        "router",
        "oracle",
        "hedgespec-paper",
        "ucb1_sliding",
        "thompson_sliding",
        "metasd_halving",
    }


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("router", {}, r"selector=router cannot serve many requests at once; take one of: static, random, .*"),
        ("metasd_halving", EFFICIENCY, r"selector=metasd_halving cannot serve many requests at once; .*"),
        (
            "hedgespec",
            {"calibration": True},
            r"selector=hedgespec cannot have calibration=true for many .*; leave it out",
        ),
        ("hedge", {"skip": 0.9}, r"selector=hedge cannot have skip=0.9 for many requests at once; leave it out"),
        ("ftl", {"granularity": "chunk"}, r"selector=ftl cannot have granularity=chunk .*; type granularity=token"),
        ("ucb1", {"window": 20}, r"selector=ucb1 cannot have window=20 for many requests at once; type window=0"),
        ("metasd_ucb", {}, r"selector=metasd_ucb cannot have reward=divergence .*; type reward=efficiency"),
        ("hedge", {"etas": 1.0}, r"no option of hedge 'etas'; did you mean 'eta'\? .*"),
        ("hedge", {"costs": [1.0]}, r"costs needs a number for each of 5 drafters, got 1"),
    ],
)
def test_what_many_requests_cannot_have_is_refused(name, options, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        batched_selector(name, DRAFTERS, K, NUM_SLOTS, **options)
