"""Training on a stream reads every answer once, resumes where it was, and checks the taps before its first step."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.compose import load_config
from drafterforge.data import stream, stream_reader
from drafterforge.data.answers import Answer
from drafterforge.data.served import ServedAnswer, ServedCaptures
from drafterforge.data.stream import StreamRecord, StreamWriter, finish_stream, used_bytes
from drafterforge.data.stream_reader import StreamReader
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.errors import ArtifactError, ConfigError, Terminated
from drafterforge.targets.capture import FeatureCapture
from drafterforge.training.batches import PackedData
from drafterforge.training.streamed import StreamedData, require_start, streamed
from drafterforge.training.trainer import distil
from tests.models import tiny_drafter, tiny_model, tiny_target
from tests.training.runs import SHORT, Killed

TAPS = (2, 3, 4)  # of the seven layers of the tiny target
NUM_ANSWERS, LIMIT = 40, 300_000
CONFIG = replace(SHORT, max_steps=60, val_every=5, patience=60)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(stream, "POLL_S", 0.005)
    monkeypatch.setattr(stream_reader, "POLL_S", 0.005)


def answers(count: int = NUM_ANSWERS) -> list[Answer]:
    generator = torch.Generator().manual_seed(3)
    rows = []
    for number in range(count):
        length = int(torch.randint(9, 21, (1,), generator=generator))
        ids = torch.randint(3, 61, (length,), generator=generator).tolist()
        mask = [0] * 4 + [1] * (length - 4)
        rows.append(Answer(f"a{number}", "", "", "train", ids, mask, 4, length - 4, True))
    return rows


@cache
def model_of(**changes: object) -> torch.nn.Module:
    return tiny_model(eos_token_id=None, **changes)


def extracted(row: Answer, taps=TAPS, **changes: object) -> ServedAnswer:
    """An answer with the hidden states that transformers returns, as vLLM keeps them: before the final norm."""
    model = model_of(**changes)
    seen = []
    hook = model.model.norm.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        states = model.model(torch.tensor([row.input_ids[:-1]]), output_hidden_states=True).hidden_states
    hook.remove()
    return ServedAnswer(row, torch.cat([states[layer][0] for layer in taps], dim=1), outputs=seen[0][0])


def fill(folder: Path, rows: list[Answer], limit: int = LIMIT, flush_s: float = 0.01) -> Path:
    writer = StreamWriter(folder, limit, TAPS, flush_s=flush_s)
    for number, row in enumerate(rows):
        while not writer.has_room and writer.thread.is_alive():
            time.sleep(0.002)
        writer.add(number, extracted(row))
    while writer.thread.is_alive() and writer.record.answers < len(rows):  # as `prepare-data` does
        time.sleep(0.005)
    writer.close(20)
    finish_stream(folder)
    return folder


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """A stream of all answers, which fit into it."""
    return fill(
        tmp_path_factory.mktemp("stream") / "ring", answers(), 640_000, flush_s=1.0
    )  # shards of 40 kB, whatever the machine's speed


class Run:
    """A tiny training on a stream, which ends with an error before it packs batch number `kill_at`."""

    def __init__(self, folder: Path, ring: Path, copy: bool = True, **changes: object) -> None:
        self.folder, self.ring = folder, folder / "ring" if copy else ring
        if copy:
            shutil.copytree(ring, self.ring)
        self.config, self.target = replace(CONFIG, **changes), tiny_target(eos_token_id=None)
        self.texts: list[tuple[int, ...]] = []  # in the order in which batches are packed

    def __call__(self, kill_at: int = 0, act=None):
        run, count = self, 0

        class Data(StreamedData):
            def _capture(self, rows, indices):
                nonlocal count
                count += 1
                if count == kill_at:
                    if act is None:
                        raise Killed
                    act()
                run.texts += [tuple(rows[index].input_ids) for index in indices]
                return super()._capture(rows, indices)

        torch.manual_seed(1)
        module = DistillModule(tiny_drafter(self.target), self.target.head_weight, self.config)
        capture, val = FeatureCapture(self.target), answers(NUM_ANSWERS + 3)[NUM_ANSWERS:]
        train = Data(StreamReader(self.ring, "run"), capture, set(), self.config.tokens_per_batch, seed=0)
        val_data = PackedData(val, lambda indices: capture([val[i].input_ids for i in indices]), 48)
        self.checkpoint = distil(module, train, val_data, self.config, self.folder / "run", torch.device("cpu"), 0)
        self.weights = {name: value.clone() for name, value in module.drafter.state_dict().items()}
        return self


@pytest.fixture(scope="module")
def complete(tmp_path_factory, filled) -> Run:
    return Run(tmp_path_factory.mktemp("complete"), filled)()


def test_a_stream_is_read_once_validated_at_its_end_and_emptied(complete, capsys):
    assert sorted(complete.texts) == sorted(tuple(row.input_ids) for row in answers())
    curve = complete.checkpoint.curve
    assert 10 < curve[-1]["step"] < CONFIG.max_steps and curve[-1]["step"] not in range(0, 60, 5)
    assert used_bytes(complete.ring) == 0
    assert not stream.readers_finished(complete.ring)  # until the drafter is written


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


# 14 steps and 3 validations; batches are packed one ahead
@pytest.mark.parametrize(("kill_at", "act"), [(1, None), (9, None), (14, None), (11, terminate)])
def test_a_killed_training_started_again_trains_on_what_is_left(tmp_path, filled, complete, kill_at, act):
    run = Run(tmp_path, filled)
    with pytest.raises((Killed, Terminated)):
        run(kill_at, act)
    assert_same(run(), complete)


def test_a_training_that_was_killed_at_its_end_trains_no_further(tmp_path, filled, complete):
    run = Run(tmp_path, filled)()
    count = len(run.texts)
    assert len(run().texts) == count
    assert_same(run, complete)


def test_checkpoints_make_room_where_validations_are_rare(tmp_path, complete):
    """Four times the bound, by a writer that waits; killed twice on the way."""
    rows, ring = answers(120), tmp_path / "ring"
    model_of()  # in this thread, as it sets the seed
    sizes, ended = [], threading.Event()

    def watch() -> None:
        while not ended.wait(0.001):
            sizes.append(used_bytes(ring))

    def write() -> None:
        fill(ring, rows, 200_000)

    threads = [threading.Thread(target=act) for act in (write, watch)]
    for thread in threads:
        thread.start()
    run = Run(tmp_path, ring, copy=False, val_every=1000, max_steps=1000)
    for kill_at in (14, 21):
        with pytest.raises(Killed):
            run(kill_at)
    before = len(run.texts)
    run()
    ended.set()
    for thread in threads:
        thread.join()
    trained = set(run.texts)
    assert trained == {tuple(row.input_ids) for row in rows} and before > 40
    assert 100_000 < max(sizes) <= 200_000 and StreamRecord.read(ring).answers == 120


def test_every_epoch_reads_the_shards_that_lie_there(tmp_path, filled):
    reader = StreamReader(shutil.copytree(filled, tmp_path / "ring"), "run")
    data = StreamedData(reader, FeatureCapture(tiny_target(eos_token_id=None)), set(), 48, 0, epochs=2)
    assert sum(sum(batch.lengths) for batch in data) == 2 * sum(len(row.input_ids) for row in answers())


def test_ranks_read_together_what_one_process_reads(tmp_path, filled):
    def batches(rank: int, num_ranks: int) -> list[list[int]]:
        reader = StreamReader(shutil.copytree(filled, tmp_path / f"ring-{rank}-{num_ranks}"), "run")
        data = StreamedData(reader, FeatureCapture(tiny_target(eos_token_id=None)), set(), 48, 0)
        data.rank, data.num_ranks = rank, num_ranks
        return [batch.tokens.tolist() for batch in data]

    alone, ranks = batches(0, 1), [batches(rank, 2) for rank in range(2)]
    together = [batch for pair in zip(*ranks, strict=True) for batch in pair]
    assert together == alone[: len(together)] and len(alone) - len(together) in (0, 1)


def test_the_largest_seed_shuffles_a_stream(tmp_path, filled):
    reader = StreamReader(shutil.copytree(filled, tmp_path / "ring"), "run")
    data = StreamedData(reader, FeatureCapture(tiny_target(eos_token_id=None)), set(), 48, 2**32 - 1)
    assert sum(sum(batch.lengths) for batch in data) == sum(len(row.input_ids) for row in answers())


@pytest.mark.parametrize("held_out", [{"val": 1}, {}], ids=["of prepare-data", "of a server"])
def test_only_the_traffic_of_a_server_begins_after_what_was_read_before(tmp_path, capsys, held_out):
    ring = tmp_path / "ring"
    writer = StreamWriter(ring, LIMIT, TAPS, held_out=held_out)
    writer.add(0, extracted(answers()[0]))
    writer.close(5)
    config = load_config("train_drafter", TrainDrafterConfig, ["domain=sql", f"data.stream={ring}"])
    require_start(config, tmp_path)
    StreamReader(ring, "sql").release(1)
    read = "the first 1 shards"
    with pytest.raises(ConfigError, match=f"sql has read {read} of .* before") if held_out else nullcontext():
        require_start(config, tmp_path)
    assert (f"{read} were read before; training begins after them" in capsys.readouterr().err) != bool(held_out)
    (tmp_path / "last.ckpt").touch()
    require_start(config, tmp_path)
    assert capsys.readouterr().err == ""


def test_a_stream_that_has_ended_trains_nothing(tmp_path, filled):
    run = Run(tmp_path, filled)
    StreamReader(run.ring, "run").finish()
    with pytest.raises(ConfigError, match="ended before the first step of training: none of its shards from"):
        run()


def test_held_out_prompts_are_not_trained_on(tmp_path, filled):
    reader = StreamReader(shutil.copytree(filled, tmp_path / "ring"), "run")
    held_out = {repr(row.input_ids[:4]).encode() for row in answers()[:10]}
    data = StreamedData(reader, FeatureCapture(tiny_target(eos_token_id=None)), held_out, 48, 0)
    assert sum(sum(batch.lengths) for batch in data) == sum(len(row.input_ids) for row in answers()[10:])


@pytest.mark.parametrize("order", [1, -1], ids=["domain by domain", "domain last"])
def test_only_answers_of_the_domain_are_trained_on(tmp_path, order):
    """Shards that hold none of them are passed over, and released."""
    domains = ["sql"] * 15 + [""] * 5 + ["math"] * 20
    rows = [replace(row, domain=name) for row, name in zip(answers(), domains, strict=True)]
    ring = fill(tmp_path / "ring", rows[::order], 640_000, flush_s=1.0)
    typed = ["domain=sql", f"data.stream={ring}", "trainer.tokens_per_batch=48"]
    held_out = SimpleNamespace(rows=lambda split: [], selected_domain=lambda domain: domain)
    config = load_config("train_drafter", TrainDrafterConfig, typed)
    data = streamed(config, tiny_target(eos_token_id=None), held_out)
    assert sum(sum(batch.lengths) for batch in data) == sum(len(row.input_ids) for row in rows[:20])
    assert data.position(10**6).first == StreamRecord.read(ring).shards


def test_features_of_a_stream_are_those_that_the_trainer_computes(tmp_path, filled):
    target = tiny_target(eos_token_id=None)
    captures = ServedCaptures(filled, FeatureCapture(target))
    rows = answers()
    for row, read, exact in zip(rows, captures(rows), FeatureCapture(target)([r.input_ids for r in rows]), strict=True):
        for name in ("features", "states"):
            torch.testing.assert_close(getattr(read, name)[:-1], getattr(exact, name)[:-1], rtol=1e-4, atol=1e-4)
        taught = slice(row.prompt_tokens - 1, -1)
        assert torch.equal(read.argmax[taught], exact.argmax[taught])


@pytest.mark.parametrize("forward", ["lean", "modules"])
@pytest.mark.parametrize("near", [False, True])  # layers that change their input by a percent, as in deep targets
@pytest.mark.parametrize("taps", [(1, 2, 3), (3, 4, 5), (2, 3, 5)])
def test_taps_that_are_off_by_one_end_with_one_line_before_a_step(tmp_path, forward, near, taps):
    changes = {"initializer_range": 0.02} if near else {}
    target = tiny_target(forward=forward, eos_token_id=None, **changes)
    for name, layers in (("right", TAPS), ("wrong", taps)):
        writer = StreamWriter(tmp_path / name, LIMIT, layers)
        writer.add(0, extracted(answers()[0], layers, **changes))
        writer.close(5)
    ServedCaptures(tmp_path / "right", FeatureCapture(target))(answers()[:1])
    expected = "match the inputs of layers {}, {} and {}, but layers 2, 3 and 4 were expected".format(*taps)
    with pytest.raises(ArtifactError, match=expected):
        ServedCaptures(tmp_path / "wrong", FeatureCapture(target))(answers()[:1])
    assert tuple(target.backbone.taps) == TAPS


def test_another_target_ends_with_one_line(tmp_path, filled):
    target = tiny_target(eos_token_id=None, initializer_range=0.1)
    with pytest.raises(ArtifactError, match="was recorded with another target"):
        ServedCaptures(filled, FeatureCapture(target))(answers()[:1])


def assert_same(run: Run, complete: Run) -> None:
    assert set(run.texts) == set(complete.texts)
    assert [point["step"] for point in run.checkpoint.curve] == [p["step"] for p in complete.checkpoint.curve]
    for name, value in complete.weights.items():
        torch.testing.assert_close(run.weights[name], value, rtol=0, atol=0)
