"""Other programs' decoding of the same weights: transformers, FlashSpec and OpenVINO GenAI."""

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
from drafterforge.runtime.batch import Cycle, Generation
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.targets.load import Target
from drafterforge.targets.stored import read_config

LOOKUP_TOKENS = 10  # that prompt lookup drafts, as its documentation suggests
FLASHSPEC_TOKENS = 4  # that FlashSpec's drafts, by its own default


class OtherEngine:
    """Another program that decodes greedily, one prompt at a time; as a method it looks like an engine."""

    program = ""  # its name in errors
    numerics = "fast"

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampling: Sampling | Sequence[Sampling] = GREEDY,
    ) -> list[Generation]:
        """Greedy answers.  A cycle is a forward pass behind the prompt's own."""
        samplings = [sampling] if isinstance(sampling, Sampling) else sampling
        if not all(one.plain for one in samplings):
            raise ConfigError(f"{self.program}'s sampling draws other noise than ours; measure it greedily")
        return [self._answer(list(prompt), max_new_tokens) for prompt in prompts]

    def _answer(self, prompt: list[int], max_new_tokens: int) -> Generation:
        raise NotImplementedError


class Transformers(OtherEngine):
    """`generate` of transformers on a target's folder, in its dtype, with its end tokens.

    What a pass accepted is told by the cache of the next one.
    """

    program = "transformers"

    def __init__(self, model: Any, target: Target, **options: Any) -> None:
        """model: see `open_model`.  options: of `generate`."""
        self.model, self.target, self.options = model, target, options
        self.seen: list[tuple[int, int]] = []  # of each forward pass: tokens known before it, tokens read in it

    @torch.inference_mode()
    def _answer(self, prompt: list[int], max_new_tokens: int) -> Generation:
        ids = torch.tensor([prompt], device=self.target.device)
        self.seen.clear()
        noting = self.model.register_forward_pre_hook(self._note, with_kwargs=True)
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
            noting.remove()
        tokens = out[0, len(prompt) :].tolist()
        answer = Generation(prompt, tokens, cycles=self._cycles(len(prompt), len(tokens)))
        answer.time_s |= {"total": seconds}
        return answer

    def _now(self) -> float:
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        return time.perf_counter()

    def _note(self, _: Any, args: tuple, given: dict[str, Any]) -> None:
        ids = given.get("input_ids", args[0] if args else None)
        past = given.get("past_key_values")
        self.seen.append((0 if past is None else int(past.get_seq_length()), int(ids.shape[1])))

    def _cycles(self, prompt_tokens: int, num_tokens: int) -> list[Cycle]:
        """The passes behind the prompt's own, which emits the first token (and whatever was looked up with it)."""
        committed = [past for past, _ in self.seen[1:]] + [prompt_tokens + num_tokens - 1]
        return [
            Cycle(depth=read - 1, num_nodes=read, accept_length=after - before, accepted=after - before - 1)
            for (before, after), (_, read) in zip(pairwise(committed), self.seen[1:], strict=True)
            if after > before
        ]


def open_model(target: Target) -> Any:
    """The target's weights as transformers runs them."""
    model = AutoModelForCausalLM.from_pretrained(
        target.folder, config=read_config(target.folder), dtype=target.dtype, use_safetensors=True
    )
    return model.to(target.device).eval()


class FlashSpec(OtherEngine):
    """FlashSpec with its prompt lookup, which needs no second model; its loop runs the model of transformers.

    Its passes are not told: it counts them otherwise.
    """

    program = "FlashSpec"

    def __init__(self, model: Any, target: Target, gamma: int = FLASHSPEC_TOKENS) -> None:
        """model: see `open_model`.  gamma: tokens that are looked up."""
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
        found = self.engine.generate(ids, max_new_tokens)
        tokens = found.output_ids[0, : found.n_tokens_generated].tolist()
        seconds = time.perf_counter() - began
        answer = Generation(prompt, tokens)
        answer.time_s |= {"total": seconds}
        return answer


class OpenVINO(OtherEngine):
    """`LLMPipeline` of OpenVINO GenAI on the CPU, autoregressive, on its own files of the target."""

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
    """The folder, if OpenVINO GenAI is installed and can open it; else one line."""
    files = Path(folder).expanduser()
    if not folder or not (files / "openvino_model.xml").is_file():
        found = f"{folder} has no openvino_model.xml" if folder else "suite.openvino names no folder"
        raise ConfigError(
            f"{found}; type `optimum-cli export openvino -m TARGET --task text-generation-with-past "
            "--weight-format fp32 FOLDER`, then suite.openvino=FOLDER"
        )
    if find_spec("openvino_genai") is None:
        raise ConfigError('OpenVINO GenAI is not installed; type pip install "drafterforge[openvino]"')
    return files


def open_pipeline(folder: Path, target: Target) -> Any:
    """OpenVINO's pipeline of the target's files, which computes in the target's dtype."""
    import openvino_genai

    precisions = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
    if target.device.type != "cpu" or target.dtype not in precisions:
        raise ConfigError(f"OpenVINO is measured on the CPU, in {', '.join(precisions.values())}; leave openvino out")
    settings = {"INFERENCE_PRECISION_HINT": precisions[target.dtype], "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    return openvino_genai.LLMPipeline(str(folder), "CPU", **settings)
