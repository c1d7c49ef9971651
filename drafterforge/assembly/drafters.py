"""Drafters of a pool from their folders; experts share the weights of their generalist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drafterforge.config.names import JOINT, halves, parts_of, typed_taps
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.checkpoint import load_full
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.lora import ADAPTER, load_adapter
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.hybrid.model import Merged
from drafterforge.drafters.retrieval.model import Datastore, Retrieval
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.runtime.pool import Drafter
from drafterforge.targets.load import Target, load_target

RETRIEVAL = "retrieval"  # the drafter that needs no training


@dataclass(frozen=True)
class Source:
    """Where one drafter's files are."""

    name: str
    kind: str  # eagle3 | retrieval | causal_lm
    folder: Path | None  # None: retrieval from the prompt and the answer alone
    base: Path | None = None  # folder of the drafter that a LoRA expert adds to


def open_drafters(sources: Sequence[Source], target: Target) -> dict[str, Drafter]:
    """Drafters by name, ready to decode; their folders' hashes are the caller's to check."""
    whole: dict[Path, tuple[Eagle3Drafter, FusedDrafter]] = {}

    def shared(folder: Path) -> tuple[Eagle3Drafter, FusedDrafter]:
        """A drafter with weights of its own, opened once."""
        key = folder.resolve()
        if key not in whole:
            drafter = load_full(folder, target.backbone.embedding)
            check_taps(folder, drafter, target)
            whole[key] = drafter, FusedDrafter(drafter, target.backbone.embedding)
        return whole[key]

    def eagle3(source: Source) -> FusedDrafter:
        if source.base is None:
            return shared(source.folder)[1]
        drafter, fused = shared(source.base)
        return fused.expert(load_adapter(source.folder / ADAPTER, drafter))

    kinds: Mapping[str, Callable[[Source], Drafter]] = {
        "eagle3": eagle3,
        "causal_lm": lambda source: small_lm(source.folder, target),
        RETRIEVAL: lambda source: Retrieval(datastore=Datastore.open(source.folder) if source.folder else None),
    }
    return {source.name: kinds[source.kind](source) for source in sources}


def open_named(names: Sequence[str], source_of: Callable[[str], Source], target: Target) -> dict[str, Drafter]:
    """Drafters by name; `general+retrieval` is the first with what the second proposes in its trees."""
    opened = open_drafters([source_of(part) for part in parts_of(names)], target)
    return {name: _joined(name, opened) for name in names}


def _joined(name: str, opened: Mapping[str, Drafter]) -> Drafter:
    """One of the opened drafters, or two of them in one."""
    if (both := halves(name)) is None:
        return opened[name]
    first, second = (opened[part] for part in both)
    if not isinstance(first, FusedDrafter) or not isinstance(second, Retrieval):
        raise ConfigError(
            f"{name}: an EAGLE-3 drafter takes what a retrieval drafter proposes into its trees; type "
            f"NAME{JOINT}{RETRIEVAL}, with the name of an EAGLE-3 drafter in front"
        )
    return Merged(first, second)


def small_lm(folder: Path, target: Target) -> Target:
    """The causal LM in `folder`, in the target's dtype and on its device; refused if it reads other token ids."""
    dtype = str(target.dtype).removeprefix("torch.")
    config = TargetConfig(name="", source="hf", model=str(folder), dtype=dtype, device=str(target.device))
    model = load_target(config, tapped=False)
    ours, theirs = (one.tokenizer.get_vocab() for one in (model, target))
    for token, wanted in sorted(theirs.items(), key=lambda item: item[1]):
        if ours.get(token, wanted) != wanted:
            raise ArtifactError(
                f"{folder} has another tokenizer than {target.name}: {token!r} is {ours[token]} there and {wanted} "
                "here; a causal LM drafts for a target with the same tokenizer"
            )
    return model


def check_taps(folder: Path, drafter: Eagle3Drafter, target: Target) -> None:
    """Refuse a drafter that reads other layers of the target."""
    if drafter.spec.tap_layers != target.backbone.taps:
        raise ArtifactError(
            f"{folder} reads the inputs of layers {drafter.spec.tap_layers}; this target is tapped at "
            f"{target.backbone.taps}; type {typed_taps(drafter.spec.tap_layers)}, or train a drafter for it"
        )
