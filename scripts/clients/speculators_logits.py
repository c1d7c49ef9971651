"""Open an exported drafter in the `speculators` library and write the logits of its forward pass.

    PYTHON_OF_SPECULATORS scripts/clients/speculators_logits.py --drafter FOLDER --inputs IN.safetensors --out OUT \
        [--convert-for TARGET]

IN holds `features` [T, 3H] and `tokens` [T], the token after each feature's position.  OUT.safetensors gets `logits`
[steps, T, W]; OUT.json lists missing and unexpected tensors.  With --convert-for, the folder is in SGLang's layout, and
speculators' converter changes it to its own layout first.  Does not import drafterforge.
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
from speculators.models.eagle3 import Eagle3DraftModel


def main() -> None:
    """Run teacher-forced steps as in training, in float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("drafter", "inputs", "out", "convert-for"):
        parser.add_argument(f"--{name}", required=name != "convert-for", default="")
    parser.add_argument("--steps", type=int, default=3)
    typed = parser.parse_args()
    torch.set_num_threads(1)
    folder, out = Path(typed.drafter), Path(typed.out)
    if typed.convert_for:
        folder = convert(folder, typed.convert_for, out.with_name(f"{out.name}-converted"))
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel(config)
    keys = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    inputs = load_file(typed.inputs)
    if "embed_tokens.weight" in keys.missing_keys:
        model.embed_tokens.weight.data.copy_(inputs["embedding"])
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: logits.append(output[0].detach().clone()))
    tokens = inputs["tokens"][None]
    with torch.no_grad():
        model.float().eval()(
            hidden_states=inputs["features"][None],
            input_ids=tokens,
            document_ids=torch.zeros_like(tokens),
            ttt_steps=typed.steps,
        )
    save_file({"logits": torch.stack(logits)}, f"{out}.safetensors")
    report = {
        "missing": sorted(keys.missing_keys),
        "unexpected": sorted(keys.unexpected_keys),
        "layers": list(config.eagle_aux_hidden_state_layer_ids),
        **{flag: getattr(config, flag) for flag in ("norm_before_residual", "fc_norm", "norm_output")},
        "verifier": config.speculators_config.verifier.name_or_path,
    }
    Path(f"{out}.json").write_text(json.dumps(report) + "\n")


def convert(folder: Path, target: str, to: Path) -> Path:
    """Convert a head in SGLang's layout with speculators."""
    from speculators.convert import convert_model

    config = json.loads((folder / "config.json").read_text())
    convert_model(
        model=str(folder),
        verifier=target,
        algorithm="eagle3",
        output_path=str(to),
        validate_device="cpu",
        norm_before_residual=config["norm_before_residual"],
        eagle_aux_hidden_state_layer_ids=config["eagle_aux_hidden_state_layer_ids"],
    )
    return to


if __name__ == "__main__":
    main()
