"""Drafting where it pays: decisions by tokens per second change the speed, never the text."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.runtime import verify_costs as room
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.runtime.verify_costs import VerifyCosts, costs_path, verify_costs
from drafterforge.runtime.worth import FEWEST_UNREAD, LONGEST_PAUSE, NEURAL_PAUSE, SHORTEST_PAUSE, Traffic, Worth
from drafterforge.tree.evidence import Evidence
from drafterforge.tree.expand import ReachGrowth
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.merge import likeliest
from tests.models import tiny_drafter, tiny_target

PROMPTS = [[3, 14, 15, 9, 26, 5] * 3, [7], [4] * 17, [9, 8, 7, 9, 8]]
SHAPE = TreeShape(12, 6, 2)
SAMPLED = Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=5)
FLAT = VerifyCosts((1, 4, 16), (0.010, 0.010, 0.010))  # nodes cost nothing
STEEP = VerifyCosts((1, 2, 16), (0.010, 0.020, 0.160))  # every node costs a pass of its own


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def hybrid(target) -> HybridDrafter:
    return HybridDrafter(FusedDrafter(tiny_drafter(target), target.backbone.embedding), Retrieval())


def fresh(costs: VerifyCosts) -> VerifyCosts:
    return VerifyCosts(costs.nodes, tuple(costs.seconds))


@pytest.mark.parametrize(
    ("max_batch", "costs", "sampling"),
    [(1, FLAT, GREEDY), (3, FLAT, SAMPLED), (1, STEEP, SAMPLED), (3, STEEP, GREEDY)],
)
def test_the_text_is_the_target_s(target, hybrid, max_batch, costs, sampling):
    expected = [Engine(target).generate([prompt], 40, sampling)[0].tokens for prompt in PROMPTS]
    pool = Pool({"both": hybrid}, "static", shapes={"both": SHAPE}, worth=Worth(fresh(costs)))
    engine = Engine(target, pool, SHAPE, max_batch)
    for _ in range(2):  # the second time with what was learned
        answers = engine.generate(PROMPTS, 40, sampling)
        assert [answer.tokens for answer in answers] == expected


def test_drafters_of_fixed_shape_are_left_out_where_they_do_not_pay(target, hybrid):
    expected = Engine(target).generate(PROMPTS, 40)
    pool = Pool({"eagle": hybrid.neural}, "static", worth=Worth(fresh(STEEP)))
    answers = Engine(target, pool, SHAPE).generate(PROMPTS, 40)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]


def finished_cycle(nodes: int, accepted: int, verify_s: float, draft_s: float = 0.0) -> CycleRecord:
    """A cycle of one row."""
    zeros = torch.zeros(1, nodes, dtype=torch.long)
    record = CycleRecord(zeros[:, 0], [9], SHAPE, [0.0])
    record.tree = Tree(zeros, zeros, zeros, [float(nodes - 1)])
    record.counts, record.emitted = [accepted + 1], [[0] * (accepted + 1)]
    record.seconds |= {"verify": verify_s, "draft": draft_s}
    return record


def play(worth: Worth, cycles: int, accepted: int, seconds: float) -> list[bool]:
    """Whether each cycle of a row drafts, if drafted trees of 5 nodes take `seconds` and add `accepted` tokens."""
    row, drafted = worth.row(0.0, 1), []
    for _ in range(cycles):
        worth.plan([row])
        drafted.append(row.drafts)
        record = finished_cycle(5, accepted, seconds) if row.drafts else finished_cycle(1, 0, 0.010)
        worth.learn([row], record)
    return drafted


def test_a_row_that_gains_nothing_decodes_plainly_and_tries_again_ever_more_rarely():
    drafted = play(Worth(VerifyCosts((1, 5, 16), (0.010, 0.020, 0.040))), 1500, 0, 0.020)
    tries = np.flatnonzero(drafted)
    pauses = np.diff(tries[tries > 100])
    assert sum(drafted[-1000:]) < 20
    assert SHORTEST_PAUSE < pauses.max() <= LONGEST_PAUSE + 1 and (np.diff(pauses) >= 0).all()


def test_a_moment_in_which_another_program_ran_changes_little():
    worth = Worth(VerifyCosts((1, 5, 16), (0.010, 0.011, 0.040)))
    row = worth.row(0.0, 1)
    row.drafts = row.uses_neural = True

    def cycle(seconds: float) -> None:
        limits = worth.limits([row], 1, 5, "eagle")
        limits.clock, limits.reading, limits.ended = [0.0, seconds / 2], 0.0, seconds
        worth.learn([row], finished_cycle(5, 2, 0.011, seconds), [limits])

    for _ in range(100):
        cycle(0.004)
    before = worth.neural_cycle_s, row.net.value, worth.rate(1)
    cycle(0.800)
    assert (
        worth.neural_cycle_s < 1.1 * before[0] and row.net.value > 0.8 * before[1] and worth.rate(1) > 0.9 * before[2]
    )
    for _ in range(100):
        cycle(0.040)  # what stays is learned
    assert worth.neural_cycle_s > 0.030


def test_short_answers_try_again_too():
    worth = Worth(VerifyCosts((1, 5, 16), (0.010, 0.020, 0.040)))
    tries = [sum(play(worth, 40, 0, 0.020)) for _ in range(100)]
    assert 5 < sum(tries[50:]) < 20  # of 2,000 cycles, with pauses of at most 256
    assert any(all(play(worth, 40, 4, 0.012)) for _ in range(200))  # once tries have shown that drafting pays


def test_reading_is_tried_after_pauses_that_double_up_to_a_limit():
    traffic = Traffic(0.0)
    tries = np.flatnonzero([traffic.tries_reading(pays=False) for _ in range(400)])
    assert tries[0] == FEWEST_UNREAD and np.diff(tries).tolist() == [17, 33, 65, 65, 65, 65, 65]
    assert not traffic.tries_reading(pays=True)
    assert [traffic.tries_reading(pays=False) for _ in range(9)] == [False] * 8 + [True]


def test_a_row_that_gains_always_drafts():
    assert all(play(Worth(VerifyCosts((1, 5, 16), (0.010, 0.012, 0.040))), 300, 2, 0.012))


@pytest.mark.parametrize("pause", [0, NEURAL_PAUSE])
def test_a_neural_drafter_does_not_look_dearer_because_it_has_paused(pause):
    worth = Worth(VerifyCosts((1, 5, 16), (0.010, 0.011, 0.040)))
    row = worth.row(0.0, 1)
    row.drafts = True
    for _ in range(50):
        row.neural_skipped, row.neural_gain.value = pause, 9.0
        limits = worth.limits([row], 1, 5, "eagle")
        assert limits.uses_neural(0, 0.0, 1.0, 0)
        limits.clock, limits.reading, limits.ended = [0.0, 0.009], 0.008, 0.010
        worth.learn([row], finished_cycle(5, 2, 0.011, 0.010), [limits])
    assert worth.neural_s.value == pytest.approx(0.003, abs=0.0005)  # 2 ms of drafting, 1 ms of verifying its nodes
    assert worth.reading_s.value == pytest.approx(0.001 if pause else 0.008, abs=0.0005)


@pytest.mark.parametrize(("alone", "milliseconds"), [(0, 3.0), (2, 2.5), (4, 2.0), (9, 2.0)])
def test_a_neural_drafter_pays_for_nodes_that_retrieval_would_not_propose(alone, milliseconds):
    worth = Worth(VerifyCosts((1, 5, 16), (0.010, 0.011, 0.040)))
    row = worth.row(0.0, 1)
    row.drafts = True
    for _ in range(50):
        row.neural_gain.value = 9.0
        limits = worth.limits([row], 1, 5, "eagle")
        assert limits.uses_neural(0, 0.0, 1.0, alone)
        limits.clock, limits.reading, limits.ended = [0.0, 0.002], 0.0, 0.002
        worth.learn([row], finished_cycle(5, 2, 0.011, 0.002), [limits])
    assert worth.neural_s.value == pytest.approx(milliseconds / 1e3, abs=2e-4)


def test_what_a_sleeping_drafter_would_add_follows_ignorance_and_costs():
    worth, nets = Worth(VerifyCosts((1, 5, 16), (0.010, 0.011, 0.040))), {}
    for ignorance in (1.0, 0.1, 1.0):
        row = worth.row(0.0, 1)
        row.is_awake, row.drafts, before = False, True, row.traffic.neural_gain.weight
        for _ in range(800):
            limits = worth.limits([row], 1, 5, "eagle")
            assert not limits.uses_neural(0, 1.0, ignorance, 3)
            worth.learn([row], finished_cycle(4, 2, 0.011, 0.001), [limits])
        net = row.traffic.neural_net.value
        assert nets.setdefault(ignorance, net) == pytest.approx(net, abs=0.1)  # it comes back
        assert row.traffic.neural_gain.weight == before  # what it adds is learned only from its own drafts
    assert nets[0.1] == pytest.approx(0.0, abs=0.1) and nets[1.0] > 0.5
    seconds = worth.neural_s.value
    worth.neural_s.value = 10 * seconds
    assert worth.neural_net(row, worth.rate(1)) < 0.0 < nets[1.0]


def test_doubt_shrinks_with_the_cycles_that_a_drafter_has_shown_its_gain_in():
    worth = Worth(VerifyCosts((1, 5, 16), (0.010, 0.011, 0.040)))
    row = worth.row(0.0, 1)
    row.drafts, doubts = True, [row.traffic.doubt]
    for _ in range(200):
        limits = worth.limits([row], 1, 5, "eagle")
        row.neural_tries = 1
        assert limits.uses_neural(0, 1.0, 1.0, 3)
        limits.clock, limits.ended = [0.0, 0.002], 0.002
        worth.learn([row], finished_cycle(5, 2, 0.011, 0.002), [limits])
        doubts.append(row.traffic.doubt)
    assert doubts == sorted(doubts, reverse=True) and doubts[-1] < 0.3 * doubts[0]
    worth.doubt_neural(row.traffic)
    assert row.traffic.doubt > doubts[0]


def test_a_drafter_that_is_read_in_doubt_is_tried_until_the_doubt_is_small():
    worth = Worth(VerifyCosts((1, 5, 16), (0.010, 0.011, 0.040)))
    used = []
    for _ in range(40):  # requests
        row = worth.row(0.0, 1)
        for _ in range(30):
            row.drafts = True
            limits = worth.limits([row], 1, 5, "eagle")
            used.append(limits.uses_neural(0, 1.0, 0.5, 3))
            limits.clock, limits.ended = [0.0, 0.005], 0.005
            added = round(row.retrieved)  # the neural drafter adds nothing
            worth.learn([row], finished_cycle(5, added, 0.011, 0.005 if used[-1] else 0.0), [limits])
    assert row.traffic.doubt < 0.35 and row.traffic.neural_net.value < 0.05
    assert sum(used[:300]) > 1.5 * sum(used[-300:]) > 0


def test_reading_and_waking_after_a_pause_are_no_cost_of_drafting():
    nets = []
    for reading, refresh in ((0.001, 0.0), (0.008, 0.0), (0.001, 0.007)):
        worth = Worth(VerifyCosts((1, 5, 16), (0.010, 0.011, 0.040)))
        row = worth.row(0.0, 1)
        row.drafts, row.neural_skipped, row.neural_gain.value = True, 8, 9.0
        limits = worth.limits([row], 1, 5, "eagle")
        assert limits.uses_neural(0, 0.0, 1.0, 0)
        limits.clock, limits.reading, limits.ended = [0.0, 0.002], reading, 0.001 + reading
        record = finished_cycle(5, 2, 0.011, 0.001 + reading + refresh)
        record.seconds["refresh"] = refresh
        worth.learn([row], record, [limits])
        nets.append(row.net.value)
    assert nets[1] == pytest.approx(nets[0], abs=0.02) == pytest.approx(nets[2], abs=0.02)


@pytest.mark.parametrize(("reaches", "levels"), [([0.0], 1), ([0.9, 0.0], 2), ([0.9, 0.9], 3)])
def test_levels_are_counted_whether_a_tree_ends_by_its_depth_or_before(reaches, levels):
    worth = Worth(VerifyCosts((1, 5, 16), (0.010, 0.011, 0.040)))
    row = worth.row(0.0, 1)
    row.uses_neural = True
    limits = worth.limits([row], 1, 5, "eagle")
    growth = ReachGrowth(TreeShape(5, 3, 1), limits.least_reach([0]), torch.device("cpu"))
    for level, reach in enumerate(reaches, start=1):
        growth.go_on(level, torch.tensor([[reach]]).log())
    limits.drafted(growth.num_levels, growth.reaches, growth.clock)
    assert limits.levels == levels


def test_drafters_are_compared_by_trees_of_equal_depth():
    worth = Worth(VerifyCosts((1, 5, 16), (0.010, 0.011, 0.040)))
    row = worth.row(0.0, 1)
    for number in range(400):
        name, levels = (("deep", 5), ("flat", 2))[number % 2]
        row.drafts = row.uses_neural = True
        limits = worth.limits([row], 1, 5, name)
        limits.clock = [0.001 * level for level in range(levels)]  # a tree of all levels does not ask after the last
        limits.levels, limits.ended = levels, 0.001 * levels
        worth.learn([row], finished_cycle(5, 2, 0.011, limits.ended), [limits])
    assert worth.arms.extra_s("deep", "flat") == pytest.approx(0.0, abs=3e-4)


def test_rows_that_do_not_draft_probe_together():
    worth = Worth(VerifyCosts((1, 5, 16), (0.010, 0.030, 0.090)))
    rows = [worth.row(0.0, 3) for _ in range(3)]
    for number, row in enumerate(rows):
        row.net.value, row.skipped = -1.0, 10 * number  # they would probe in different cycles
    probing = []
    for _ in range(400):
        worth.plan(rows)
        probing.append([row.probes for row in rows])
        for row in rows:
            if row.drafts:
                worth._learn_row(row, 0.0, -1.0)
            else:
                row.skipped += 1
    assert {len(set(cycle)) for cycle in probing} == {1}
    assert 0 < sum(map(any, probing)) < 8


def test_a_new_request_begins_with_the_averages_of_earlier_ones():
    worth = Worth(VerifyCosts((1, 5, 16), (0.010, 0.011, 0.040)))
    worth.plan([unknown := worth.row(0.0, 1)])
    play(worth, 600, 0, 0.013)
    worth.plan([informed := worth.row(0.0, 1)])
    assert unknown.drafts and not informed.drafts


def test_what_did_not_pay_is_not_tried_in_larger_batches_or_at_higher_temperatures():
    worth = Worth(fresh(FLAT))
    worth.row(0.5, 4).traffic.net.value = -0.2
    assert worth.row(0.5, 8).net.value == worth.row(1.0, 4).net.value == -0.2
    assert worth.row(0.5, 2).net.value > 0.0 and worth.row(0.0, 8).net.value > 0.0
    worth.row(0.0, 1).traffic.net.value = 5.0
    assert worth.row(0.0, 2).net.value < 5.0


def test_a_kind_of_requests_begins_with_the_averages_of_the_rest_and_then_has_its_own():
    worth = Worth(fresh(FLAT))
    worth.row(0.0, 1).traffic.neural_gain.value = 0.4
    row = worth.row(0.0, 1, "traffic-1")
    assert row.neural_gain.value == 0.4
    for _ in range(100):
        row.traffic.neural_gain.add(2.0)
    assert worth.row(0.0, 1).neural_gain.value == 0.4 and worth.row(0.0, 1, "traffic-1").neural_gain.value > 1.5
    row.traffic.net.value = -0.2
    assert worth.row(0.0, 2).net.value > 0.0 > worth.row(0.0, 2, "traffic-1").net.value


def test_each_request_learns_how_far_its_probabilities_hold():
    worth = Worth(VerifyCosts((1, 5, 16), (0.010, 0.012, 0.040)))
    rows = {accepted: worth.row(0.0, 1) for accepted in (4, 1)}  # of 4 tokens promised
    for _ in range(30):
        for accepted, row in rows.items():
            worth.plan([row])
            worth.learn([row], finished_cycle(5, accepted, 0.012))
    good, bad = (worth.limits([row], 1, 16).prices for row in rows.values())
    assert good[8] < 0.6 * bad[8]


def test_costs_alone_decide_before_anything_is_known():
    worth = Worth(VerifyCosts((1, 4, 16), (0.010, 0.010, 0.030)))
    worth.plan([single := worth.row(0.0, 1)])
    worth.plan([one_of_four := worth.row(0.0, 4)])
    assert single.drafts and not one_of_four.drafts


def test_nodes_are_verified_while_they_exceed_their_price():
    evidence = Evidence.of([(9.0, [1, 2, 3, 4])], 1.0, 1.0)  # probabilities 0.9, 0.81, 0.729, 0.656
    assert likeliest(evidence, 9, 2).tokens == [1, 2, 3, 4]
    assert likeliest(evidence, 9, 2, prices=[0.0, 0.1, 0.2, 1.2, 2.2, 3.2]).tokens == [1, 2]
    assert likeliest(evidence, 9, 2, prices=[0.0, 2.0, 2.1, 2.2, 2.3, 3.2]).tokens == [1, 2, 3, 4]  # pays as a whole
    assert likeliest(evidence, 9, 2, prices=[0.0, 9.0, 9.0, 9.0, 9.0]).tokens == []


@pytest.mark.parametrize("rows", [1, 3])
def test_seconds_of_trees_are_those_of_their_nodes(rows):
    costs = VerifyCosts((1, 2, 4, 16), (0.010, 0.011, 0.015, 0.031))
    for _ in range(3):
        assert costs.of_trees(rows, 20) == [costs.of(rows * nodes, rows) for nodes in range(1, 21)]
        costs.learn(4, rows, 0.030)
        costs.learn(8, rows, 0.045)


@pytest.mark.parametrize(("base", "node"), [(0.020, 0.001), (0.010, 0.004), (0.030, 0.002), (0.010, 0.0)])
def test_the_seconds_of_a_node_are_learned_apart_from_the_load(base, node):
    costs, rng = VerifyCosts((1, 16), (0.010, 0.040)), np.random.default_rng(0)  # 2 ms a node
    for nodes in rng.integers(1, 12, 300):
        costs.learn(int(nodes), 1, (base + node * (nodes - 1)) * rng.uniform(0.95, 1.05))
    assert costs.of(11, 1) - costs.of(1, 1) == pytest.approx(10 * node, abs=0.003)
    assert costs.of(4, 1) == pytest.approx(base + 3 * node, rel=0.1)
    assert costs.of(16, 1) > costs.of(11, 1)  # as in the table: no cycle had as many nodes


def test_costs_follow_the_machine():
    costs = fresh(STEEP)
    for _ in range(60):
        costs.learn(2, 1, 0.060)
    assert costs.of(2, 1) == pytest.approx(0.060, rel=0.05) and costs.of(1, 1) == pytest.approx(0.030, rel=0.05)
    assert costs.of(4, 4) == pytest.approx(3 * (0.020 + 0.020), rel=0.05)  # the nearest batch size is the best guess
    assert costs.of(32, 1) == pytest.approx(3 * 0.32, rel=0.05)


def test_costs_are_measured_once(target, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path))
    measured = verify_costs(target)
    monkeypatch.setattr(room, "measure", lambda *_: pytest.fail("measured again"))
    read = verify_costs(target)
    assert read.nodes == measured.nodes and read.seconds.tolist() == measured.seconds.tolist()
    assert all(np.diff(read.seconds) >= 0) and read.seconds[0] > 0


def test_other_kernels_have_other_costs(target, monkeypatch):
    before = costs_path(target, False)
    monkeypatch.setattr(room, "kernel_version", lambda: "later")
    assert costs_path(target, False) != before


def test_a_damaged_file_of_costs_is_measured_again(target, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path))
    verify_costs(target)
    path = costs_path(target, False)
    for damage in ("{", '{"device": "cpu", "dtype": "float32", "seconds": {"1": 0.1, "two": 0.2}}'):
        path.write_text(damage)
        assert verify_costs(target).seconds[0] > 0 and path.read_text() != damage


@pytest.mark.parametrize("count", [10**9, 10**400, "9" * 5000, "01", "\u0661"], ids=lambda count: str(count)[:12])
def test_costs_of_strangers_allocate_no_table_of_their_size(target, tmp_path, monkeypatch, count):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / costs_path(target, False).name
    path.write_text(json.dumps({"device": "cpu", "dtype": "float32", "seconds": {"1": 0.1, str(count): 0.2}}))
    costs = verify_costs(target, folders=[tmp_path])
    assert costs.nodes[-1] == room.NODES[-1] and len(costs.table) == room.NODES[-1] + 1  # measured


def test_costs_of_this_device_are_read_from_other_folders(target, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "first"))
    measured = verify_costs(target)
    folder = costs_path(target, False).parent
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "second"))
    monkeypatch.setattr(room, "measure", lambda *_: pytest.fail("measured again"))
    assert verify_costs(target, folders=[tmp_path, folder]).seconds.tolist() == measured.seconds.tolist()
