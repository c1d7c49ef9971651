"""A measurements file is read as it was written, and rows computed from it equal those of the measurements."""

from __future__ import annotations

import dataclasses

import pyarrow
import pytest
from pyarrow import parquet

from drafterforge.errors import ArtifactError
from drafterforge.evaluation.measurements import SCHEMA, Measurement, RequestInfo, load_measurements, save_measurements
from drafterforge.evaluation.methods import AUTOREGRESSIVE, INVARIANT
from drafterforge.evaluation.rows import timed_rows
from drafterforge.reporting.reader import ALL
from drafterforge.runtime.rows import STEPS, Cycle, Generation


def answer(tokens: int, accepts: list[int], seconds: float) -> Generation:
    times = dict.fromkeys(STEPS, 0.125) | {"total": seconds}
    cycles = [
        Cycle(3, 8, length, length - 1, draft_s=0.5, drafter="sql", top_k=2, refresh_s=0.25) for length in accepts
    ]
    return Generation([], list(range(tokens)), cycles=cycles, stop_reason="eos", time_s=times)


def measurement(
    method: str, group: int, domain: str, tokens: int, accepts: list[int], seconds: float, **more
) -> Measurement:
    requests = [RequestInfo(group, domain, "", f"question {group}", 1, 7)]
    static = {"selector": "static", "scheduler": "static", "drafters": ["sql"]}
    return Measurement(
        method,
        requests,
        [answer(tokens, accepts, seconds)],
        seconds,
        **({} if method == AUTOREGRESSIVE else static),
        numerics="fast",
        dtype="float32",
        group=group,
        peak_bytes=3_000_000 + group,
        **more,
    )


MEASUREMENTS = [
    measurement(AUTOREGRESSIVE, 0, "sql", 9, [1] * 8, 4.0),
    measurement("sql alone", 0, "sql", 9, [4, 4], 1.0),
    measurement(AUTOREGRESSIVE, 1, "math", 7, [1] * 6, 3.0),
    measurement("sql alone", 1, "math", 7, [2, 2, 2], 2.0),
]


def batch() -> Measurement:
    """Two requests decoded together."""
    requests = [RequestInfo(0, "sql"), RequestInfo(1, "math")]
    answers = [answer(5, [4], 2.5), answer(3, [1, 1], 2.0)]
    return Measurement("pool", requests, answers, 2.75, axis="batch size", at=2.0, dtype="float32", numerics="fast")


def test_read_measurements_equal_the_written_ones(tmp_path):
    replay = Measurement("ucb1", [RequestInfo(3, "chat")], [answer(4, [3], 0.0)], source="replay", options='{"c": 0.5}')
    measurements = [*MEASUREMENTS, batch(), replay, measurement("HF generate", 2, "sql", 4, [], 1.0, external=True)]
    save_measurements(tmp_path / "a.parquet", measurements)
    assert load_measurements(tmp_path / "a.parquet") == measurements
    save_measurements(tmp_path / "b.parquet", load_measurements(tmp_path / "a.parquet"))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_files_without_the_machine_load_are_read(tmp_path):
    save_measurements(tmp_path / "a.parquet", [dataclasses.replace(MEASUREMENTS[0], other_cores=1.5, session=7)])
    table = parquet.read_table(tmp_path / "a.parquet")
    parquet.write_table(table.drop_columns(["other_cores", "session"]), tmp_path / "b.parquet")
    assert load_measurements(tmp_path / "b.parquet") == [MEASUREMENTS[0]]


def test_every_field_of_a_cycle_is_kept():
    assert {field.name for field in dataclasses.fields(Cycle)} <= set(SCHEMA.names)


def test_a_damaged_file_is_reported_in_one_line(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ArtifactError, match="is no table of cycles"):
        load_measurements(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"kind": ["answer"]}), tmp_path / "b.parquet")
    with pytest.raises(ArtifactError, match="has no column accept_length"):
        load_measurements(tmp_path / "b.parquet")


def test_rows_equal_hand_computed_ones():
    wrong = {"method": "sql alone", "prompt": 1, "position": 2, "margin": 0.5, "rerun": False}
    rows = {(row["method"], row["domain"]): row for row in timed_rows(MEASUREMENTS, [wrong], {0: 1, 1: 2})}
    full = rows["sql alone", ALL]
    assert full["speedup"] == round(16 / 3 / (16 / 7), 4) and full["mat"] == round(14 / 5, 4)
    assert (full["num_prompts"], full["mismatches"], full["peak_mb"]) == (2, 1, 3.0)
    assert full["regret_cycles"] == 1.0 and full["regret_tokens"] == (1 * 8 / 1 + 1 * 6 / 2) / 2
    assert rows[AUTOREGRESSIVE, ALL]["regret_cycles"] is None
    assert rows["sql alone", "sql"]["speedup"] == 4.0 and rows["sql alone", "sql"]["mismatches"] == 0
    assert rows["sql alone", "math"]["speedup"] == 1.5 and rows["sql alone", "math"]["mismatches"] == 1
    assert len(rows) == 6 and len(timed_rows(MEASUREMENTS, [], {}, by_domain=False)) == 2


def test_requests_decoded_together_share_one_clock():
    plain = dataclasses.replace(batch(), method=AUTOREGRESSIVE, seconds=5.5)
    row = timed_rows([plain, batch()], [], {})[1]
    assert (row["batch_size"], row["num_prompts"], row["num_tokens"]) == (2, 2, 8)
    assert row["speedup"] == 2.0 and row["tokens_per_s"] == round(8 / 2.75, 3) and row["mat"] == 2.0
    assert (row["axis"], row["at"]) == ("batch size", 2.0)


def test_a_single_group_has_no_interval():
    plain = dataclasses.replace(batch(), method=AUTOREGRESSIVE, seconds=5.5)
    row = timed_rows([plain, batch()], [], {})[1]
    assert row["speedup_ci95"] is None and row["speedup_macro_ci95"] is None and row["speedup_macro"] == 2.0


def test_p_values_are_corrected_over_the_methods_that_were_timed_together():
    names = ("general alone", "sql alone", INVARIANT)
    entries = [
        measurement(name, group, "sql", 8, [2, 2], 1.0 + 0.1 * group + 0.5 * turn)
        for turn, name in enumerate((AUTOREGRESSIVE, *names))
        for group in range(8)
    ]
    hot = [dataclasses.replace(entry, temperature=1.0) for entry in entries]
    for row in timed_rows([*entries, *hot], [], {})[1:4]:
        expected = None if row["method"] == INVARIANT else pytest.approx(2 * row["wilcoxon_p"])
        assert row["wilcoxon_p_holm"] == expected


def test_measurements_of_other_temperatures_are_other_rows():
    hot = [
        dataclasses.replace(measurement, temperature=1.0, seconds=2 * measurement.seconds)
        for measurement in MEASUREMENTS
    ]
    rows = timed_rows([*MEASUREMENTS, *hot], [], {}, by_domain=False)
    assert [row["temperature"] for row in rows] == [0.0, 0.0, 1.0, 1.0]
    assert rows[0]["tokens_per_s"] == pytest.approx(2 * rows[2]["tokens_per_s"], rel=1e-3)
    assert rows[1]["speedup"] == rows[3]["speedup"]


def test_other_text_of_another_program_is_no_mismatch():
    external = [
        dataclasses.replace(measurement, method="HF generate", selector="none", external=True)
        for measurement in MEASUREMENTS
        if measurement.method == AUTOREGRESSIVE
    ]
    wrong = {"method": "HF generate", "prompt": 0, "position": 2, "margin": 0.5, "rerun": False}
    row = timed_rows([*MEASUREMENTS, *external], [wrong], {0: 1, 1: 2}, by_domain=False)[-1]
    assert (row["method"], row["mismatches"], row["other_text"], row["regret_cycles"]) == ("HF generate", None, 1, None)
