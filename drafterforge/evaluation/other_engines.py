"""Other programs that decode the same weights: transformers, FlashSpec and OpenVINO GenAI."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from drafterforge.errors import ConfigError
from drafterforge.kernels import gpu
from drafterforge.runtime.rows import Cycle, Generation
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.targets.load import Target
from drafterforge.targets.stored import read_config

LOOKUP_TOKENS = 10  # tokens drafted by prompt lookup, as its documentation suggests
FLASHSPEC_TOKENS = 4  # tokens drafted by FlashSpec, its default


class OtherEngine:
    """Another program with the interface of an engine; decodes greedily, one prompt at a time."""

    program = ""  # its name in errors
    numerics = "fast"

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampling: Sampling | Sequence[Sampling] = GREEDY,
    ) -> list[Generation]:
        """Greedy answers.  Each forward pass after the prefill is a cycle."""
        samplings = [sampling] if isinstance(sampling, Sampling) else sampling
        if not all(sampling.plain for sampling in samplings):
            raise ConfigError(
                f"{self.program} samples with other noise, so that its text cannot be compared; measure it greedily"
            )
        return [self._answer(list(prompt), max_new_tokens) for prompt in prompts]

    def _answer(self, prompt: list[int], max_new_tokens: int) -> Generation:
        raise NotImplementedError


class Transformers(OtherEngine):
    """`generate` of transformers in the target's dtype and with its end tokens.

    The accept length of a pass follows from the cache length at the next one.
    """

    program = "transformers"

    def __init__(self, model: Any, target: Target, **options: Any) -> None:
        """model: see `open_model`.  options: of `generate`."""
        self.model, self.target, self.options = model, target, options
        self.passes: list[tuple[int, int]] = []  # of each forward pass: tokens in the cache, tokens read

    @torch.inference_mode()
    def _answer(self, prompt: list[int], max_new_tokens: int) -> Generation:
        ids = torch.tensor([prompt], device=self.target.device)
        self.passes.clear()
        hook = self.model.register_forward_pre_hook(self._record_pass, with_kwargs=True)
        try:
            began = self._now()
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=sorted(self.target.eos_ids) or None,
                **self.options,
            )
            seconds = self._now() - began
        finally:
            hook.remove()
        tokens = out[0, len(prompt) :].tolist()
        answer = Generation(prompt, tokens, cycles=self._cycles(len(prompt), len(tokens)))
        answer.time_s |= {"total": seconds}
        return answer

    def _now(self) -> float:
        gpu.synchronize(self.target.device)
        return time.perf_counter()

    def _record_pass(self, _: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        past = kwargs.get("past_key_values")
        self.passes.append((0 if past is None else int(past.get_seq_length()), int(ids.shape[1])))

    def _cycles(self, prompt_tokens: int, num_tokens: int) -> list[Cycle]:
        """Cycles of the passes after the prefill."""
        committed = [past for past, _ in self.passes[1:]] + [prompt_tokens + num_tokens - 1]
        return [
            Cycle(depth=read - 1, num_nodes=read, accept_length=after - before, accepted=after - before - 1)
            for (before, after), (_, read) in zip(pairwise(committed), self.passes[1:], strict=True)
            if after > before
        ]


def open_model(target: Target) -> Any:
    """The target's weights as a model of transformers."""
    model = AutoModelForCausalLM.from_pretrained(
        target.folder, config=read_config(target.folder), dtype=target.dtype, use_safetensors=True
    )
    return model.to(target.device).eval()


class FlashSpec(OtherEngine):
    """FlashSpec with its prompt lookup, on the model of transformers; it does not report its passes."""

    program = "FlashSpec"

    def __init__(self, model: Any, target: Target, gamma: int = FLASHSPEC_TOKENS) -> None:
        """model: see `open_model`.  gamma: tokens drafted by prompt lookup."""
        from flashspec import BanditConfig, FlashSpecConfig, SamplingConfig, SpeculativeEngine
        from flashspec.engine import NgramDrafter, TargetModel

        config = FlashSpecConfig(
            device=str(target.device),
            drafter_strategy="bandit",
            bandit=BanditConfig(n_arms=1),
            sampling=SamplingConfig(gamma=gamma, temperature=0.0),
            eos_token_ids=tuple(sorted(target.eos_ids)),
        )
        wrapped = TargetModel(str(target.folder), target.device, target.dtype, model=model)
        self.engine, self.target = SpeculativeEngine(config, [NgramDrafter()], wrapped), target

    def _answer(self, prompt: list[int], max_new_tokens: int) -> Generation:
        ids = torch.tensor([prompt], device=self.target.device)
        began = time.perf_counter()
        output = self.engine.generate(ids, max_new_tokens)
        tokens = output.output_ids[0, : output.n_tokens_generated].tolist()
        seconds = time.perf_counter() - began
        answer = Generation(prompt, tokens)
        answer.time_s |= {"total": seconds}
        return answer


class OpenVINO(OtherEngine):
    """`LLMPipeline` of OpenVINO GenAI on the CPU, autoregressive, on an OpenVINO export of the target."""

    program = "OpenVINO GenAI"

    def __init__(self, pipeline: Any, target: Target) -> None:
        """pipeline: see `open_pipeline`."""
        self.pipeline, self.target = pipeline, target

    def _answer(self, prompt: list[int], max_new_tokens: int) -> Generation:
        import openvino
        import openvino_genai

        ids = np.array([prompt], dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        config = openvino_genai.GenerationConfig(max_new_tokens=max_new_tokens, do_sample=False)
        config.stop_token_ids, config.ignore_eos = set(self.target.eos_ids), not self.target.eos_ids
        began = time.perf_counter()
        tokens = list(self.pipeline.generate(inputs, config).tokens[0])
        seconds = time.perf_counter() - began
        cycles = [Cycle(depth=0, num_nodes=1, accept_length=1, accepted=0) for _ in tokens[1:]]
        answer = Generation(prompt, tokens, cycles=cycles)
        answer.time_s |= {"total": seconds}
        return answer


def require_openvino(folder: str) -> Path:
    """The folder of an OpenVINO export; ConfigError if it has none or OpenVINO GenAI is not installed."""
    files = Path(folder).expanduser()
    if not folder or not (files / "openvino_model.xml").is_file():
        problem = f"{folder} has no openvino_model.xml" if folder else "suite.openvino names no folder"
        raise ConfigError(
            f"{problem}; type `optimum-cli export openvino -m TARGET --task text-generation-with-past "
            "--weight-format fp32 FOLDER`, then suite.openvino=FOLDER"
        )
    if find_spec("openvino_genai") is None:
        raise ConfigError('OpenVINO GenAI is not installed; type pip install "drafterforge[openvino]"')
    return files


def open_pipeline(folder: Path, target: Target) -> Any:
    """OpenVINO's pipeline on an export of the target, in the target's dtype."""
    import openvino_genai

    precisions = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
    if target.device.type != "cpu" or target.dtype not in precisions:
        raise ConfigError(f"OpenVINO is measured on the CPU in {', '.join(precisions.values())}; leave openvino out")
    settings = {"INFERENCE_PRECISION_HINT": precisions[target.dtype], "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    return openvino_genai.LLMPipeline(str(folder), "CPU", **settings)
