"""Sample answers of short prompts in vLLM, and write how often each continuation occurred.

    PYTHON_OF_VLLM scripts/clients/vllm_samples.py --target FOLDER --drafter POOL --prompts IDS.json --out FOUND.json

Counts of the tokens at one position of the answer, one dictionary a prompt.  Position 2 is verified by the second
cycle at the latest, so that drafted tokens are among those counted.  Needs vLLM (scripts/clients_env vllm).
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB

from vllm import LLM, SamplingParams

POSITION = 2


def main() -> None:
    """Sample every prompt `--samples` times."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("target", "drafter", "prompts", "out"):
        parser.add_argument(f"--{name}", required=name != "drafter", default="")
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--settings", default='{"adaptive": false}', help="of the pool, as JSON")
    typed = parser.parse_args()
    llm = LLM(
        model=typed.target,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=256,
        enforce_eager=True,
        speculative_config={"method": "eagle3", "model": typed.drafter, "num_speculative_tokens": 3}
        if typed.drafter
        else None,
        additional_config={"drafterforge": json.loads(typed.settings)} if typed.drafter else {},
        seed=1 if typed.drafter else 0,  # independent of the run to compare with
    )
    counts = []
    sampling = SamplingParams(temperature=typed.temperature, max_tokens=POSITION + 1, ignore_eos=True)
    for ids in json.loads(Path(typed.prompts).read_text()):
        outputs = llm.generate([{"prompt_token_ids": ids}] * typed.samples, sampling, use_tqdm=False)
        counts.append(Counter(str(output.outputs[0].token_ids[POSITION]) for output in outputs))
    Path(typed.out).write_text(json.dumps({"counts": counts}) + "\n")
    os._exit(0)  # vLLM's threads do not end by themselves


if __name__ == "__main__":
    main()
