"""Decode prompts in vLLM with an exported drafter, and write the accepted tokens of every cycle.

    PYTHON_OF_VLLM scripts/clients/vllm_cycles.py --target FOLDER --drafter FOLDER --prompts IDS.json --out FOUND.json

IDS.json holds lists of token ids.  Needs vLLM only (scripts/clients_env vllm); does not import drafterforge.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process is easy to end
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB

import vllm
from vllm import LLM, SamplingParams


def main() -> None:
    """Decode prompts one by one, greedily, in float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("target", "drafter", "prompts", "out"):
        parser.add_argument(f"--{name}", required=name != "drafter", default="")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--stop-ids", type=int, nargs="*", default=[])
    typed = parser.parse_args()
    drafting = {"method": "eagle3", "model": typed.drafter, "num_speculative_tokens": typed.depth}
    llm = LLM(
        model=typed.target,
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=1,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        per_request_spec_decode_metrics="detailed",
        speculative_config=drafting if typed.drafter else None,
        seed=0,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=typed.max_tokens, stop_token_ids=typed.stop_ids)
    answers = []
    for ids in json.loads(Path(typed.prompts).read_text()):
        output = llm.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)[0].outputs[0]
        steps = output.spec_decode_metrics
        answers.append(
            {
                "tokens": list(output.token_ids),
                "finish": output.finish_reason,
                "accepted": list(steps.per_step_accepted) if steps else [],
                "drafted": list(steps.per_step_drafted) if steps else [],
            }
        )
    report = {"version": vllm.__version__, "answers": answers, "counters": counters(llm)}
    Path(typed.out).write_text(json.dumps(report) + "\n")
    os._exit(0)  # vLLM's threads do not end by themselves


def counters(llm: LLM) -> dict[str, list[int]]:
    """vLLM's counters over all prompts."""
    prefix, counts = "vllm:spec_decode_", {}
    for metric in llm.get_metrics():
        if metric.name.startswith(prefix):
            values = metric.values if hasattr(metric, "values") else [metric.value]
            counts[metric.name.removeprefix(prefix)] = list(values)
    return counts


if __name__ == "__main__":
    main()
