"""The `config.json` of a published EAGLE-3 head, in SafeAILab's, SGLang's or speculators' keys, as our spec.

What programs read differently, or what would change the head's numbers here, is refused in one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PretrainedConfig

from drafterforge.config.hints import typed_taps
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
    """A head's configuration, whose layer is `layer`; `notes` are lines for the user, filled while reading."""

    source: str  # the file, for messages
    format: str
    top: dict[str, Any]
    layer: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def refuse(self, line: str) -> ArtifactError:
        """The error that names the file."""
        return ArtifactError(f"{self.source} {line}")

    def count(self, key: str, *, of: Mapping[str, Any] | None = None, default: int | None = None) -> int:
        """A positive whole number."""
        value = (self.layer if of is None else of).get(key)
        value = default if value is None else value
        if value is None:
            raise self.refuse(f"lacks {quote(key)}; wanted the config of an EAGLE-3 head")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refuse(f"has {key}={quote(value)}; wanted a whole number above 0")
        return value

    def flag(self, key: str) -> bool:
        """True or false, false where it is missing or null."""
        value = self.top.get(key, self.layer.get(key))
        if not isinstance(value, bool | None):
            raise self.refuse(f"has {key}={quote(value)}; wanted true or false")
        return bool(value)


def open_config(config: object, source: str, format: str) -> HeadConfig:
    """Which of the layouts this is, and that we run what it describes.  format: auto, or one of FORMATS."""
    if not isinstance(config, dict):
        raise ArtifactError(f"{source} is no JSON object; wanted the config of an EAGLE-3 head")
    by_itself = "speculators" if "speculators_model_type" in config else "eagle3"
    if format not in ("auto", by_itself):
        raise ArtifactError(
            f"{source} is in the layout of {by_itself}, not of {shorten(format)}; type format={by_itself}"
        )
    layer = config.get("transformer_layer_config") if by_itself == "speculators" else config
    if not isinstance(layer, dict):
        raise ArtifactError(f"{source} lacks 'transformer_layer_config'; wanted the config of an EAGLE-3 head")
    head = HeadConfig(source, by_itself, config, layer)
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
    known = ARCHITECTURES[head.format]
    if not isinstance(names, list) or len(names) != 1 or names[0] not in known:
        raise head.refuse(f"has architectures={quote(names)}; wanted one of {', '.join(known)}")
    if head.top.get("quantization_config") or head.layer.get("quantization_config"):
        raise head.refuse("describes quantised weights; wanted bfloat16, float16 or float32 ones")
    if (head.top.get("eagle_config") or {}).get("use_aux_hidden_state", True) is not True:
        raise head.refuse("sets eagle_config.use_aux_hidden_state=false, as EAGLE-1 and 2 do; wanted an EAGLE-3 head")


def _require_plain_layer(head: HeadConfig) -> None:
    """Refuse what our one Llama layer does not compute."""
    nested = head.top.get("eagle_config") or {}
    if found := [key for key in UNSUPPORTED if head.flag(key) or nested.get(key)]:
        raise head.refuse(f"sets {', '.join(found)} (one norm over all features), which drafterforge does not run")
    if found := [key for key in ("attention_bias", "mlp_bias", "qkv_bias") if head.flag(key)]:
        raise head.refuse(f"sets {', '.join(found)}; drafterforge runs layers without biases")
    if head.count("num_hidden_layers", default=1) != 1:
        raise head.refuse(f"has {shorten(head.layer['num_hidden_layers'])} layers; drafterforge runs heads of one")
    kind, activation = head.layer.get("model_type", "llama"), head.layer.get("hidden_act", "silu")
    if kind != "llama":
        raise head.refuse(
            f"has a layer of model_type {quote(kind)}, which norms queries and keys or more; wanted 'llama'"
        )
    if activation not in ("silu", "swish"):
        raise head.refuse(f"has hidden_act={quote(activation)}; wanted 'silu'")
    if head.layer.get("layer_types") == ["sliding_attention"]:
        head.notes.append(
            f"the head was trained to see the last {shorten(head.layer.get('sliding_window'))} tokens, and sees all "
            "here: past that length it may draft a little differently than elsewhere"
        )


def head_spec(
    head: HeadConfig,
    target: PretrainedConfig,
    num_rows: int,
    taps: Sequence[int],
    layer_ids: Sequence[int] = (),
    norm_before_residual: bool | None = None,
) -> DrafterSpec:
    """The spec of a head for a target that is tapped at `taps`.  num_rows: of its `lm_head`.

    layer_ids, norm_before_residual: what the user says where the config contradicts itself or is silent.
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
        raise head.refuse(f"has width {shorten(hidden)}; drafterforge runs heads as wide as their target, {width}")
    drafted = head.count("draft_vocab_size", of=head.top, default=num_rows)
    if drafted != num_rows:
        raise head.refuse(f"has draft_vocab_size={shorten(drafted)}, but lm_head.weight has {num_rows} rows")
    if head.flag("tie_word_embeddings") and num_rows != vocab:
        head.notes.append("the config ties lm_head to the embedding, which it cannot be; the head's own is read")
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


def _norm_31(head: HeadConfig, key: str, *also: str) -> bool:
    """Whether the head has a norm of EAGLE-3.1; also: what other programs call it in `eagle_config`."""
    if not head.top.get(key):
        elsewhere = {**head.layer, **(head.top.get("eagle_config") or {})}
        if odd := [name for name in (key, *also) if elsewhere.get(name)]:
            raise head.refuse(
                f"sets {odd[0]} where SGLang and vLLM do not look for it; write {key}=true at the top if it is meant"
            )
    if head.flag(key) and key == "norm_output" and head.format == "eagle3":
        head.notes.append(
            "norm_output=true is read as SGLang and vLLM do: drafted tokens read normed outputs. SpecForge 0.2.0 wrote "
            "it for heads that it trained otherwise; if this is one, write norm_output=false into its config"
        )
    return head.flag(key)


def _norm_before_residual(head: HeadConfig, typed: bool | None) -> bool:
    silent = head.top.get("norm_before_residual") is None and head.layer.get("norm_before_residual") is None
    if not silent:
        found = head.flag("norm_before_residual")
        if typed not in (None, found):
            raise head.refuse(f"says norm_before_residual={str(found).lower()}; leave it out of the command")
        return found
    if typed is None and head.format == "speculators":
        raise head.refuse(
            "lacks 'norm_before_residual', which vLLM takes for true and speculators for false; "
            "type norm_before_residual=true or norm_before_residual=false"
        )
    return bool(typed)


def read_taps(head: HeadConfig, wanted: tuple[int, ...], typed: Sequence[int] = ()) -> tuple[int, ...]:
    """Layers whose input the head reads; it must be those `wanted` at which the target is tapped.

    Ids at the top are such layers; SGLang reads `eagle_config`, and adds one.  typed: the user's word on it.
    """
    top = _ids(head, head.top.get(LAYER_IDS))
    nested = _ids(head, (head.top.get("eagle_config") or {}).get(LAYER_IDS))
    by_sglang = tuple(layer + 1 for layer in nested) if nested else None
    told = f"type layer_ids=[{','.join(map(str, wanted))}] if it reads the inputs of these layers"
    if typed:
        taps, said = tuple(typed), [ids for ids in (top, nested, by_sglang) if ids]
        if said and taps not in said:
            raise head.refuse(
                f"names the layers {shorten(list(said[0]))}, not layer_ids={list(taps)}; leave layer_ids= out"
            )
    elif top and by_sglang not in (None, top):
        raise head.refuse(
            f"contradicts itself: {LAYER_IDS} is {shorten(list(top))} at the top, and eagle_config's "
            f"{shorten(list(nested))} means {shorten(list(by_sglang))} to SGLang; {told}"
        )
    elif nested and not top and nested == wanted:
        raise head.refuse(
            f"has {LAYER_IDS}={list(nested)} in eagle_config only, which SGLang takes for {list(by_sglang)} and vLLM "
            f"for {list(nested)}; {told}"
        )
    else:
        taps = top or by_sglang or wanted
        if not (top or nested):
            head.notes.append(f"the config names no layers: the usual ones are taken, the inputs of {list(wanted)}")
    if taps != wanted:
        raise head.refuse(
            f"reads the inputs of layers {shorten(list(taps))}, but the target is tapped at {list(wanted)}; type "
            f"{typed_taps(taps)}, here and in every command with this head"
        )
    return wanted


def _ids(head: HeadConfig, found: object) -> tuple[int, ...] | None:
    if not found:
        return None
    if (
        not isinstance(found, list)
        or len(found) != 3
        or any(type(layer) is not int or layer > LARGEST for layer in found)
    ):
        raise head.refuse(f"has {LAYER_IDS}={quote(found)}; wanted three whole numbers")
    return tuple(found)


def read_rope(head: HeadConfig) -> dict[str, Any]:
    """Rotary parameters from `rope_parameters`, or from `rope_theta` and `rope_scaling`; both must agree."""
    layer = head.layer
    given, theta, scaling = layer.get("rope_parameters"), layer.get("rope_theta"), layer.get("rope_scaling")
    for key, value in (("rope_parameters", given), ("rope_scaling", scaling)):
        if not isinstance(value, dict | None) or any(isinstance(one, dict) for one in (value or {}).values()):
            raise head.refuse(f"has {key}={quote(value)}; wanted the parameters of one rope")
    found = dict(given if given is not None else scaling or {})
    found["rope_type"] = found.pop("type", None) or found.get("rope_type") or "default"
    if found.get("rope_theta") is None:
        found["rope_theta"] = theta
    if found["rope_theta"] is None:
        found["rope_theta"] = 10000.0
        head.notes.append("the config names no rope_theta: 10000, which EAGLE's own code takes then")
    if given is not None:
        _require_same_rope(head, found, theta, scaling)
    if found["rope_type"] not in ROPES:
        raise head.refuse(f"has a rope of type {quote(found['rope_type'])}; wanted one of {', '.join(ROPES)}")
    if found.pop("partial_rotary_factor", 1.0) != 1.0 or layer.get("partial_rotary_factor", 1.0) != 1.0:
        raise head.refuse("rotates a part of each head only (partial_rotary_factor); drafterforge rotates all of it")
    return found


def _require_same_rope(head: HeadConfig, found: dict[str, Any], theta: object, scaling: dict[str, Any] | None) -> None:
    """Refuse old spellings that say something else than `rope_parameters`."""
    old = dict(scaling or {})
    if old:
        old["rope_type"] = old.pop("type", None) or old.get("rope_type")
    if theta is not None:
        old["rope_theta"] = theta
    if "rope_scaling" in head.layer and not scaling:
        old["rope_type"] = "default"
    if odd := sorted(key for key, value in old.items() if found.get(key) != value):
        said = ", ".join(
            f"{key} is {quote(found.get(key))} in rope_parameters and {quote(old[key])} besides" for key in odd
        )
        raise head.refuse(f"contradicts itself: {shorten(said, 300)}")
