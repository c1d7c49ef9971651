"""The decoding benchmark runs and writes the figures other tools read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drafterforge.errors import ArtifactError
from drafterforge.targets.smollm2 import ensure_smollm2

SCRIPT = Path(__file__).parents[1] / "scripts" / "bench_decode.py"


@pytest.mark.slow
def test_report_has_the_keys_other_tools_read(tmp_path):
    try:
        ensure_smollm2()
    except ArtifactError as error:
        pytest.skip(f"the embedded target is not here and cannot be fetched: {error}")
    path = tmp_path / "decode.json"
    subprocess.run([sys.executable, SCRIPT, "--quick", "--invariant-prompts", "1", "--json", path], check=True)
    report = json.loads(path.read_text())
    assert report["bench"] == "decode"
    figures = report["figures"]
    for name in ("ar_over_hf_generate", "best_over_hf_generate", "retrieval_over_prompt_lookup", "invariant_over_fast"):
        assert figures[name] > 0
    assert figures["mismatches_fp32"] == figures["mismatches_invariant"] == 0
    assert [row["method"] for row in report["rows"]][:2] == ["autoregressive", "retrieval"]
