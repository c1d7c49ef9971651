"""Open an exported block drafter in the `speculators` library and write the logits of its forward pass.

    PYTHON_OF_SPECULATORS scripts/clients/speculators_blocks.py --drafter FOLDER --inputs IN.safetensors --out OUT

IN holds `features` [T, 3H], `tokens` [T] and the target's `embedding`.  OUT.safetensors gets `logits` [M, Q, W] of the
blocks below M anchors, the `anchors` [M], and the logits of `confidence` [M, Q] if it has a head for it.  OUT.json
lists missing and unexpected tensors.  Does not import drafterforge.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TORCHDYNAMO_DISABLE="1")

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModelConfig
from speculators.models.dflash import core as dflash
from speculators.models.dspark import core as dspark

MODELS = {"dflash": (dflash.DFlashDraftModel, dflash), "dspark": (dspark.DSparkDraftModel, dspark)}


def main() -> None:
    """Run blocks below every anchor, as in training, in float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("drafter", "inputs", "out"):
        parser.add_argument(f"--{name}", required=True)
    typed = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(typed.drafter)
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model_class, module = MODELS[config.speculators_model_type]
    model = model_class(config)
    keys = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    inputs = load_file(typed.inputs)
    model.embed_tokens.weight.data.copy_(inputs["embedding"])
    captured: dict[str, torch.Tensor] = {}
    select = dflash.select_anchors

    def capture_anchors(*arguments: object, **more: object) -> tuple[torch.Tensor, torch.Tensor]:
        captured["anchors"], valid = select(*arguments, **more)
        return captured["anchors"], valid

    def capture_logits(logits: torch.Tensor, *arguments: object, **more: object) -> tuple:
        captured["logits"] = logits[0].unflatten(0, (-1, config.block_size))
        if model_class is dspark.DSparkDraftModel and arguments[1] is not None:
            captured["confidence"] = arguments[1][0].unflatten(0, (-1, config.block_size))
        return torch.zeros(()), {}  # not its loss, which needs a GPU

    dflash.select_anchors, module.compute_metrics = capture_anchors, capture_logits
    tokens, features = inputs["tokens"][None], inputs["features"][None]
    with torch.no_grad():
        model.float().eval()(
            hidden_states=features,
            input_ids=tokens,
            loss_mask=torch.ones_like(tokens).bool(),
            verifier_last_hidden_states=features[..., : features.shape[-1] // 3],
            document_ids=torch.zeros_like(tokens),
            max_anchors=tokens.numel() - config.block_size,
        )
    save_file({name: tensor.contiguous() for name, tensor in captured.items()}, f"{typed.out}.safetensors")
    report = {
        "missing": sorted(keys.missing_keys),
        "unexpected": sorted(keys.unexpected_keys),
        "layers": list(config.aux_hidden_state_layer_ids),
        "tokens": config.speculators_config.proposal_methods[0].speculative_tokens,
    }
    Path(f"{typed.out}.json").write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
