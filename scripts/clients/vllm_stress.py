"""Decode many requests with a pool in vLLM under stress, and write the answers and what the plug-in still holds.

    PYTHON_OF_VLLM scripts/clients/vllm_stress.py --target FOLDER --drafter POOL --prompts IDS.json --out FOUND.json

Prompts are asked for four times in a row, so their prefixes are cached; they are read in chunks; with few --blocks
requests are preempted; some requests are aborted, and some ask for a drafter.  Without --drafter vLLM decodes the
requests plainly, for comparison.  Needs vLLM and drafterforge (scripts/clients_env vllm).
"""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # so that the plug-in's state can be read
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB

from vllm import LLM, SamplingParams

CHUNK, BLOCK, ABORTED, REPEATS = 64, 32, 0.15, 4


def main() -> None:
    """Decode all requests, `--at-a-time` together."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("target", "drafter", "prompts", "out"):
        parser.add_argument(f"--{name}", required=name != "drafter", default="")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--at-a-time", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=0, help="blocks of the KV cache; 0: as many as fit")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--max-len", type=int, default=640)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="times that a prompt is asked for in a row")
    parser.add_argument("--hints", nargs="*", default=[])
    parser.add_argument("--settings", default="{}", help="of the pool, as JSON")
    typed = parser.parse_args()
    prompts = json.loads(Path(typed.prompts).read_text())
    drafting = {"method": "eagle3", "model": typed.drafter, "num_speculative_tokens": 3}
    llm = LLM(
        model=typed.target,
        dtype="float32",
        max_model_len=typed.max_len,
        max_num_seqs=typed.at_a_time,
        enforce_eager=True,
        block_size=BLOCK,
        enable_prefix_caching=True,
        max_num_batched_tokens=max(CHUNK, 4 * typed.at_a_time),
        enable_chunked_prefill=True,
        num_gpu_blocks_override=typed.blocks or None,
        speculative_config=drafting if typed.drafter else None,
        additional_config={"drafterforge": json.loads(typed.settings)} if typed.drafter else {},
        disable_log_stats=False,
        seed=0,
    )
    answers = decode(llm.llm_engine, prompts, typed)
    by_prompt = [(int(name) // typed.repeats % len(prompts), tokens) for name, tokens in answers.items()]
    report = {"answers": by_prompt, "preemptions": counter(llm, "vllm:num_preemptions")}
    report["prefix_hits"] = counter(llm, "vllm:prefix_cache_hits")
    if typed.drafter:
        report |= held(llm)
    Path(typed.out).write_text(json.dumps(report) + "\n")
    os._exit(0)  # vLLM's threads do not end by themselves


def decode(engine, prompts: list[list[int]], typed: argparse.Namespace) -> dict[str, list[int]]:
    """Tokens of every request that was not aborted, by its number."""
    draws = random.Random(0)
    waiting = [str(number) for number in range(typed.requests)]
    doomed = {name: draws.randrange(1, 12) for name in waiting if typed.drafter and draws.random() < ABORTED}  # steps
    answers: dict[str, list[int]] = {}
    running: set[str] = set()
    while waiting or running:
        while waiting and len(running) < typed.at_a_time:
            name = waiting.pop(0)
            hint = draws.choice(typed.hints) if typed.hints and draws.random() < 0.3 else ""
            sampling = SamplingParams(
                temperature=0.0, max_tokens=typed.max_tokens, extra_args={"drafter": hint} if hint else None
            )
            engine.add_request(name, {"prompt_token_ids": prompts[int(name) // typed.repeats % len(prompts)]}, sampling)
            running.add(name)
        for output in engine.step():
            if output.finished and output.request_id in running:
                answers[output.request_id] = list(output.outputs[0].token_ids)
                running.remove(output.request_id)
        for name in [name for name in running if name in doomed]:
            doomed[name] -= 1
            if not doomed[name]:
                engine.abort_request([name])
                running.remove(name)
    for _ in range(3):
        engine.step()  # lets the runner see that the last requests ended
    return answers


def counter(llm: LLM, name: str) -> int:
    """The value of one of vLLM's counters."""
    return int(sum(metric.value for metric in llm.get_metrics() if metric.name == name))


def held(llm: LLM) -> dict[str, int]:
    """What the plug-in still holds of requests."""
    drafter = llm.llm_engine.model_executor.driver_worker.worker.model_runner.drafter
    texts = drafter.lookups.texts if drafter.lookups else {}
    return {"slots": len(drafter.requests.slots), "texts": len(texts)}


if __name__ == "__main__":
    main()
