"""Reads the `config.json` of a published EAGLE-3 head (SafeAILab, SGLang or speculators) as a `DrafterSpec`.

Settings that programs interpret differently, or that drafterforge does not support, raise an ArtifactError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PretrainedConfig

from drafterforge.config.hints import taps_flag
from drafterforge.drafters.eagle3.spec import LARGEST, UNSUPPORTED, DrafterSpec
from drafterforge.errors import ArtifactError, quote, shorten

FORMATS = ("eagle3", "speculators")
ARCHITECTURES = {
    "eagle3": ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM"),
    "speculators": ("Eagle3DraftModel", "Eagle3Speculator"),
}
ROPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass
class HeadConfig:
    """The parsed config of a head."""

    source: str  # the file, for messages
    format: str
    top: dict[str, Any]  # the complete config
    layer: dict[str, Any]  # the config of the decoder layer
    notes: list[str] = field(default_factory=list)  # lines to print, collected while reading

    def refuse(self, line: str) -> ArtifactError:
        """An error that begins with the name of the file."""
        return ArtifactError(f"{self.source} {line}")

    def count(self, key: str, *, of: Mapping[str, Any] | None = None, default: int | None = None) -> int:
        """The positive integer under a key of `of`, by default of `layer`."""
        value = (self.layer if of is None else of).get(key)
        value = default if value is None else value
        if value is None:
            raise self.refuse(f"lacks {quote(key)}; wanted the config of an EAGLE-3 head")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refuse(f"has {key}={quote(value)}; wanted a whole number above 0")
        return value

    def flag(self, key: str) -> bool:
        """The boolean under a key of `top` or `layer`; False if it is missing or null."""
        value = self.top.get(key, self.layer.get(key))
        if not isinstance(value, bool | None):
            raise self.refuse(f"has {key}={quote(value)}; wanted true or false")
        return bool(value)


def open_config(config: object, source: str, format: str) -> HeadConfig:
    """Detect the layout; ArtifactError if the head is not supported.  format: auto, or one of FORMATS."""
    if not isinstance(config, dict):
        raise ArtifactError(f"{source} is not a JSON object; wanted the config of an EAGLE-3 head")
    layout = "speculators" if "speculators_model_type" in config else "eagle3"
    if format not in ("auto", layout):
        raise ArtifactError(f"{source} has the layout {layout}, not {shorten(format)}; type format={layout}")
    layer = config.get("transformer_layer_config") if layout == "speculators" else config
    if not isinstance(layer, dict):
        raise ArtifactError(f"{source} lacks 'transformer_layer_config'; wanted the config of an EAGLE-3 head")
    head = HeadConfig(source, layout, config, layer)
    if not isinstance(config.get("eagle_config"), dict | None):
        raise head.refuse(f"has eagle_config={quote(config['eagle_config'])}; wanted an object")
    _require_eagle3(head)
    _require_plain_layer(head)
    return head


def _require_eagle3(head: HeadConfig) -> None:
    kind = head.top.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise head.refuse(f"describes a {quote(kind)} speculator; wanted 'eagle3'")
    names = head.top.get("architectures")
    expected = ARCHITECTURES[head.format]
    if not isinstance(names, list) or len(names) != 1 or names[0] not in expected:
        raise head.refuse(f"has architectures={quote(names)}; wanted one of {', '.join(expected)}")
    if head.top.get("quantization_config") or head.layer.get("quantization_config"):
        raise head.refuse("describes quantised weights; wanted bfloat16, float16 or float32 ones")
    if (head.top.get("eagle_config") or {}).get("use_aux_hidden_state", True) is not True:
        raise head.refuse("sets eagle_config.use_aux_hidden_state=false, as EAGLE-1 and 2 do; wanted an EAGLE-3 head")


def _require_plain_layer(head: HeadConfig) -> None:
    """Refuse anything but one Llama layer without biases."""
    nested = head.top.get("eagle_config") or {}
    if keys := [key for key in UNSUPPORTED if head.flag(key) or nested.get(key)]:
        raise head.refuse(f"sets {', '.join(keys)} (one norm over all features), which drafterforge does not support")
    if keys := [key for key in ("attention_bias", "mlp_bias", "qkv_bias") if head.flag(key)]:
        raise head.refuse(f"sets {', '.join(keys)}; drafterforge supports layers without biases only")
    if head.count("num_hidden_layers", default=1) != 1:
        raise head.refuse(
            f"has {shorten(head.layer['num_hidden_layers'])} layers; drafterforge supports heads with one layer"
        )
    kind, activation = head.layer.get("model_type", "llama"), head.layer.get("hidden_act", "silu")
    if kind != "llama":
        raise head.refuse(
            f"has a layer of model_type {quote(kind)}, which norms queries and keys or more; wanted 'llama'"
        )
    if activation not in ("silu", "swish"):
        raise head.refuse(f"has hidden_act={quote(activation)}; wanted 'silu'")
    if head.layer.get("layer_types") == ["sliding_attention"]:
        head.notes.append(
            f"the head was trained with a sliding window of {shorten(head.layer.get('sliding_window'))} tokens, but "
            "attends to all tokens here: in longer texts its drafts may differ slightly from those in other programs"
        )


def head_spec(
    head: HeadConfig,
    target: PretrainedConfig,
    num_rows: int,
    taps: Sequence[int],
    layer_ids: Sequence[int] = (),
    norm_before_residual: bool | None = None,
) -> DrafterSpec:
    """The spec of a head for a target with these taps.  num_rows: of its `lm_head`.

    layer_ids, norm_before_residual: given by the user where the config is ambiguous or has no value.
    """
    hidden, heads = head.count("hidden_size"), head.count("num_attention_heads")
    width = head.count("target_hidden_size", of=head.top, default=hidden)
    vocab, wide = head.count("vocab_size"), target.hidden_size
    if (vocab, width) != (target.vocab_size, wide):
        raise head.refuse(
            f"is for a target of vocabulary {shorten(vocab)} and width {shorten(width)}; "
            f"this target has {target.vocab_size} and {wide}"
        )
    if hidden != width:
        raise head.refuse(
            f"has width {shorten(hidden)}; drafterforge supports heads with their target's width, {width}"
        )
    drafted = head.count("draft_vocab_size", of=head.top, default=num_rows)
    if drafted != num_rows:
        raise head.refuse(f"has draft_vocab_size={shorten(drafted)}, but lm_head.weight has {num_rows} rows")
    if head.flag("tie_word_embeddings") and num_rows != vocab:
        head.notes.append("the config ties lm_head to the embedding, but their shapes differ: lm_head.weight is used")
    eps = head.layer.get("rms_norm_eps")
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 < eps < 1:
        raise head.refuse(f"has rms_norm_eps={shorten(eps)}; wanted a number between 0 and 1")
    return DrafterSpec(
        hidden_size=hidden,
        target_hidden_size=width,
        intermediate_size=head.count("intermediate_size"),
        num_heads=heads,
        num_key_heads=head.count("num_key_value_heads", default=heads),
        head_dim=head.count("head_dim", default=max(1, hidden // heads)),
        vocab_size=vocab,
        draft_vocab_size=drafted,
        rms_norm_eps=float(eps),
        rope_parameters=read_rope(head),
        max_positions=head.count("max_position_embeddings", default=target.max_position_embeddings),
        tap_layers=read_taps(head, tuple(taps), layer_ids),
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        pad_token_id=target.pad_token_id,
        norm_before_residual=_norm_before_residual(head, norm_before_residual),
        fc_norm=_norm_31(head, "fc_norm"),
        norm_output=_norm_31(head, "norm_output", "return_hidden_post_norm"),
    )


def _norm_31(head: HeadConfig, key: str, *aliases: str) -> bool:
    """Whether the head has an EAGLE-3.1 norm.  aliases: its names in `eagle_config` of other programs."""
    if not head.top.get(key):
        elsewhere = {**head.layer, **(head.top.get("eagle_config") or {})}
        if misplaced := [name for name in (key, *aliases) if elsewhere.get(name)]:
            raise head.refuse(
                f"sets {misplaced[0]} where SGLang and vLLM do not read it; if meant, set {key}=true at the top level"
            )
    if head.flag(key) and key == "norm_output" and head.format == "eagle3":
        head.notes.append(
            "norm_output=true means, as in SGLang and vLLM, that drafted tokens read normed outputs. SpecForge 0.2.0 "
            "also wrote it for heads trained without; for such a head set norm_output=false in its config"
        )
    return head.flag(key)


def _norm_before_residual(head: HeadConfig, typed: bool | None) -> bool:
    unset = head.top.get("norm_before_residual") is None and head.layer.get("norm_before_residual") is None
    if not unset:
        value = head.flag("norm_before_residual")
        if typed not in (None, value):
            raise head.refuse(f"has norm_before_residual={str(value).lower()}; leave it out of the command")
        return value
    if typed is None and head.format == "speculators":
        raise head.refuse(
            "lacks 'norm_before_residual', which is true by default in vLLM and false in speculators; "
            "type norm_before_residual=true or norm_before_residual=false"
        )
    return bool(typed)


def read_taps(head: HeadConfig, expected: tuple[int, ...], typed: Sequence[int] = ()) -> tuple[int, ...]:
    """Layers whose inputs the head reads; they must be `expected`, the taps of the target.

    Ids at the top level are such layers; SGLang reads ids in `eagle_config` and adds one.  typed: given by the user.
    """
    top = _ids(head, head.top.get(LAYER_IDS))
    nested = _ids(head, (head.top.get("eagle_config") or {}).get(LAYER_IDS))
    by_sglang = tuple(layer + 1 for layer in nested) if nested else None
    remedy = f"type layer_ids=[{','.join(map(str, expected))}] if it reads the inputs of these layers"
    if typed:
        taps, stated = tuple(typed), [ids for ids in (top, nested, by_sglang) if ids]
        if stated and taps not in stated:
            raise head.refuse(
                f"names the layers {shorten(list(stated[0]))}, not layer_ids={list(taps)}; leave layer_ids= out"
            )
    elif top and by_sglang not in (None, top):
        raise head.refuse(
            f"contradicts itself: {LAYER_IDS} is {shorten(list(top))} at the top level, and eagle_config's "
            f"{shorten(list(nested))} means {shorten(list(by_sglang))} to SGLang; {remedy}"
        )
    elif nested and not top and nested == expected:
        raise head.refuse(
            f"has {LAYER_IDS}={list(nested)} in eagle_config only, which means {list(by_sglang)} to SGLang and "
            f"{list(nested)} to vLLM; {remedy}"
        )
    else:
        taps = top or by_sglang or expected
        if not (top or nested):
            head.notes.append(f"the config names no layers: assuming the usual ones, the inputs of {list(expected)}")
    if taps != expected:
        raise head.refuse(explain_taps(taps, expected))
    return expected


def explain_taps(taps: Sequence[int], expected: Sequence[int]) -> str:
    """What to do with a head that reads other layers than the target's taps, which are expected."""
    return (
        f"reads the inputs of layers {shorten(list(taps))}, but the target is tapped at {list(expected)}; type "
        f"{taps_flag(taps)}, here and in every command with this head"
    )


def _ids(head: HeadConfig, value: object) -> tuple[int, ...] | None:
    if not value:
        return None
    if (
        not isinstance(value, list)
        or len(value) != 3
        or any(type(layer) is not int or layer > LARGEST for layer in value)
    ):
        raise head.refuse(f"has {LAYER_IDS}={quote(value)}; wanted three whole numbers")
    return tuple(value)


def read_rope(head: HeadConfig) -> dict[str, Any]:
    """Rotary parameters from `rope_parameters`, or `rope_theta` and `rope_scaling`; both must agree."""
    layer = head.layer
    parameters, theta, scaling = layer.get("rope_parameters"), layer.get("rope_theta"), layer.get("rope_scaling")
    for key, value in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if not isinstance(value, dict | None) or any(isinstance(entry, dict) for entry in (value or {}).values()):
            raise head.refuse(f"has {key}={quote(value)}; wanted the parameters of one rope")
    rope = dict(parameters if parameters is not None else scaling or {})
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or "default"
    if rope.get("rope_theta") is None:
        rope["rope_theta"] = theta
    if rope["rope_theta"] is None:
        rope["rope_theta"] = 10000.0
        head.notes.append("the config has no rope_theta: using 10000, as EAGLE's own code does")
    if parameters is not None:
        _require_same_rope(head, rope, theta, scaling)
    if rope["rope_type"] not in ROPES:
        raise head.refuse(f"has a rope of type {quote(rope['rope_type'])}; wanted one of {', '.join(ROPES)}")
    if rope.pop("partial_rotary_factor", 1.0) != 1.0 or layer.get("partial_rotary_factor", 1.0) != 1.0:
        raise head.refuse("sets partial_rotary_factor; drafterforge supports rotating complete heads only")
    return rope


def _require_same_rope(head: HeadConfig, rope: dict[str, Any], theta: object, scaling: dict[str, Any] | None) -> None:
    """Refuse `rope_theta` and `rope_scaling` that differ from `rope_parameters`."""
    legacy = dict(scaling or {})
    if legacy:
        legacy["rope_type"] = legacy.pop("type", None) or legacy.get("rope_type")
    if theta is not None:
        legacy["rope_theta"] = theta
    if "rope_scaling" in head.layer and not scaling:
        legacy["rope_type"] = "default"
    if conflicts := sorted(key for key, value in legacy.items() if rope.get(key) != value):
        differences = ", ".join(
            f"{key} is {quote(rope.get(key))} in rope_parameters and {quote(legacy[key])} besides" for key in conflicts
        )
        raise head.refuse(f"contradicts itself: {shorten(differences, 300)}")
