"""Decode prompts in OpenVINO GenAI with an exported drafter and without it, and write tokens and statistics.

    PYTHON_OF_OPENVINO scripts/clients/openvino_rounds.py --target FOLDER --drafter FOLDER --prompts IDS.json \
        --with-embedding FOLDER --inputs IN.npz --work FOLDER --out FOUND.json

Models are converted to OpenVINO's files in --work, once.  IDS.json holds lists of token ids.  --with-embedding is the
drafter with the target's embedding among its tensors: OpenVINO GenAI adds it by itself, but a pass of the drafter alone
needs it.  That pass reads IN.npz, `features` [T, 3H] and `tokens` [T], the token after each of them, and writes
`logits` [T, W] to FOUND.npz.
Needs openvino-genai and optimum-intel (scripts/clients_env openvino); does not import drafterforge.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")

import numpy as np
import openvino
import openvino_genai

PRECISION = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}


def main() -> None:
    """Decode prompts one by one, greedily, in float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("target", "drafter", "prompts", "with-embedding", "inputs", "work", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    typed = parser.parse_args()
    work = Path(typed.work)
    target = convert(Path(typed.target), work / "target")
    drafter, with_embedding = (
        convert(Path(folder), work / f"drafter-{Path(folder).name}", "--trust-remote-code")
        for folder in (typed.drafter, typed.with_embedding)
    )
    np.savez(Path(typed.out).with_suffix(".npz"), **forward(with_embedding, np.load(typed.inputs)))
    prompts = json.loads(Path(typed.prompts).read_text())
    plain = pipeline(target)
    texts = [decode(plain, ids, typed.max_tokens)["tokens"] for ids in prompts]
    del plain
    drafting = pipeline(target, drafter)
    answers = [decode(drafting, ids, typed.max_tokens, typed.depth) for ids in prompts]
    report = {"version": openvino_genai.__version__, "plain": texts, "answers": answers}
    Path(typed.out).write_text(json.dumps(report) + "\n")


def convert(folder: Path, to: Path, *flags: str) -> Path:
    """Convert a model to OpenVINO's files, unless they exist, and return their folder."""
    if not (to / "openvino_model.xml").exists():
        tool = Path(sys.executable).with_name("optimum-cli")
        task = ["--task", "text-generation-with-past", "--weight-format", "fp32"]
        subprocess.run([tool, "export", "openvino", "-m", folder, *task, *flags, to], check=True)
    return to


def forward(drafter: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Logits of one pass over a text, and the map to the target's ids."""
    tokens = inputs["tokens"][None]
    request = openvino.Core().compile_model(drafter / "openvino_model.xml", "CPU", PRECISION).create_infer_request()
    request.infer(
        {
            "input_ids": tokens,
            "hidden_states": inputs["features"][None],
            "attention_mask": np.ones_like(tokens),
            "position_ids": np.arange(tokens.shape[1])[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
    )
    return {"logits": request.get_tensor("logits").data[0].copy(), "d2t": request.get_tensor("d2t").data.copy()}


def pipeline(target: Path, drafter: Path | None = None) -> openvino_genai.LLMPipeline:
    """A pipeline of the target, with a drafter or without."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.enable_prefix_caching, scheduler.max_num_batched_tokens = 1, False, 1024
    options = {"draft_model": openvino_genai.draft_model(str(drafter), "CPU", **PRECISION)} if drafter else {}
    return openvino_genai.LLMPipeline(str(target), "CPU", scheduler_config=scheduler, **PRECISION, **options)


def decode(pipe: openvino_genai.LLMPipeline, ids: list[int], max_tokens: int, depth: int = 0) -> dict:
    """Tokens, accepted drafted tokens, and inferences of the target."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.do_sample, config.apply_chat_template = max_tokens, False, False
    if depth:
        config.num_assistant_tokens = depth
    row = np.array([ids], dtype=np.int64)
    output = pipe.generate(
        openvino_genai.TokenizedInputs(openvino.Tensor(row), openvino.Tensor(np.ones_like(row))), config
    )
    answer = {"tokens": list(output.tokens[0])}
    if depth:
        metrics = output.extended_perf_metrics
        answer["accepted"] = metrics.get_num_accepted_tokens()
        answer["inferences"] = len(metrics.main_model_metrics.raw_metrics.m_durations)
    return answer


if __name__ == "__main__":
    main()
