"""Answers, features and packed batches of a configuration; made if they are not there."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from drafterforge.artifacts.atomic import delete_stale
from drafterforge.artifacts.locate import artifact_dir, find_artifact
from drafterforge.artifacts.manifest import Manifest
from drafterforge.config.commands import PrepareDataConfig, TrainDrafterConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.config.hints import command_for_answers
from drafterforge.config.progress import bar, say
from drafterforge.data import answering
from drafterforge.data.answering import Generate, marked_spans, prepare_answers, within_context
from drafterforge.data.answers import SPLITS, Answer, AnswerSet
from drafterforge.data.endpoint_answerer import CHECKED_PROMPTS, ServedAnswerer, disagreement
from drafterforge.data.features import (
    Captured,
    FeatureSet,
    JoinedFeatures,
    OnlineFeatures,
    features_run,
    prepare_features,
)
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.prompts import describe_sizes, load_prompts
from drafterforge.data.served import ServedCaptures
from drafterforge.data.sources import prompt_template
from drafterforge.data.spool import CaptureSpool
from drafterforge.drafters.registry import trained_kind
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.targets.answer import BatchAnswerer
from drafterforge.targets.capture import FeatureCapture
from drafterforge.targets.fingerprint import fingerprint
from drafterforge.targets.gaps import logit_gaps
from drafterforge.targets.load import Target, TextTarget, has_weights, load_target, load_text_target, locate_target
from drafterforge.training.batches import PackedData
from drafterforge.training.streamed import StreamedData, held_out_answers, streamed, validation_features

STREAM_KEYS = ("stream", "stream_gb", "stream_epochs", "stream_readers", "vllm")  # no matter to answers of our engine


def find_answers(cfg: TrainDrafterConfig, target: Target, prompts: dict | None = None) -> JoinedAnswers:
    """The answers to learn from: those of answers=, else of the configured prompts, made if they are not there.

    Of a stream, those of its first shards: held-out ones, and training texts for the draft vocabulary.
    """
    if cfg.data.stream:
        require_features(cfg)
        sets = [held_out_answers(cfg, target)]
    elif cfg.answers:
        sets = [named_answers(cfg, target, name) for name in cfg.answers]
    else:
        cfg = without_unread_features(cfg)
        sets = [answer_prompts(cfg, target, prompts or load_prompts(cfg.data, cfg.domain, cfg.seed))]
    return join_answers(cfg, target, sets)


def without_unread_features(cfg: TrainDrafterConfig) -> TrainDrafterConfig:
    """The configuration without cached features if its kind of drafter does not read them."""
    if trained_kind(cfg.drafter.kind).trained_on_features:
        return cfg
    return dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, features="online"))


def join_answers(cfg: TrainDrafterConfig, target: Target, sets: Sequence[AnswerSet]) -> JoinedAnswers:
    """These answers to learn from, and those of val_answers=."""
    held_out = [named_answers(cfg, target, name, "val_answers") for name in cfg.val_answers]
    joined = JoinedAnswers(sets, cfg.trainer.num_answers, held_out)
    for split in SPLITS:  # an empty split is refused before features are captured
        joined.rows(split, cfg.domain.answers_domain)
    return joined


def require_features(cfg: TrainDrafterConfig) -> None:
    """ConfigError if a drafter that needs no features is to be trained on a stream."""
    kind = cfg.drafter.kind
    if not trained_kind(kind).trained_on_features:
        raise ConfigError(f"data.stream= has features, which drafter={kind} does not read; type drafter=eagle3 or lora")


def named_answers(cfg: TrainDrafterConfig, target: Target, name: str, key: str = "answers") -> AnswerSet:
    """The `answers` artifact of this name or folder, checked to be of this target.  key: the setting that names it."""
    hint = command_for_answers(cfg, name, key)
    path = find_artifact(cfg.runs_dir, target.name, "answers", name, hint=hint)
    text_fingerprint = fingerprint(target.folder, weights=False) if target.folder.is_dir() else ""
    if Manifest.read(path).target_fingerprint != text_fingerprint:
        return AnswerSet.open(path, target.fingerprint, target=target.name)
    answers = AnswerSet.open(path, text_fingerprint, target=target.name)
    check_unseen_target(answers, target)
    return answers


def check_unseen_target(answers: AnswerSet, target: Target) -> None:
    """ArtifactError if greedy answers that a server gave, where the target's weights were not, are not the target's."""
    if answers.manifest.config["data"]["temperature"] > 0:
        return
    gaps: list[float] = []
    for row in answers.rows()[: len(CHECKED_PROMPTS)]:
        start, stop = marked_spans(row.loss_mask)[0]
        gaps += logit_gaps(target, row.input_ids[:stop], start)
    if reason := disagreement(gaps):
        raise ArtifactError(
            f"{answers.path} was answered by a server of another model than {target.name}: {reason}; answer the "
            "prompts again, with data.endpoint= of a server of the target"
        )


def target_to_answer(cfg: PrepareDataConfig) -> Target | TextTarget:
    """The target, loaded; its config and tokenizer where a server answers for weights that are not here."""
    if cfg.data.answers != "served" or has_weights(cfg.target):
        return load_target(cfg.target)
    if cfg.data.features == "cached":
        raise ConfigError(
            f"{locate_target(cfg.target)[1]} has no *.safetensors, which features are made with; type "
            "data.features=online, and train where the weights are"
        )
    return load_text_target(cfg.target)


def answer_prompts(cfg: PrepareDataConfig, target: Target | TextTarget, prompts: dict) -> AnswerSet:
    """The `answers` artifact of these prompts, made or found."""
    data, total = within_context(cfg.data, target.max_positions), sum(map(len, prompts.values()))
    name = cfg.name or cfg.domain.name
    say(describe_sizes(prompts))
    started, tokens = time.perf_counter(), 0
    with bar(f"answering {cfg.domain.name}", total) as progress:

        def answered(new_tokens: int, new_answers: int) -> None:
            nonlocal tokens
            tokens += new_tokens
            progress.advance(new_answers, f"{tokens / (time.perf_counter() - started):.0f} tokens/s")

        answerer = open_answerer(cfg, data, target, name, answered)
        answers = prepare_answers(
            prompts,
            tokenizer=target.tokenizer,
            generate=answerer,
            data=data,
            path=artifact_dir(cfg.runs_dir, target.name, "answers", name),
            target=target,
            config=recorded_settings(cfg, target),
            seed=cfg.seed,
            eos_ids=target.eos_ids,
            progress=lambda _, done, __: progress.reach(done),
            overwrite=cfg.overwrite,
        )
    if isinstance(answerer, ServedAnswerer):
        answerer.report()
    counts = answers.manifest.metrics["splits"]
    num_answers = sum(figures["answers"] for figures in counts.values())
    rate = " (given)" if data.answers == "given" else " (made before)"
    if tokens:
        rate = f", {tokens / (time.perf_counter() - started):.0f} tokens/s"
    say(f"answers: {num_answers} prompts, {counts['train']['answer_tokens']['sum']} training tokens{rate}")
    return answers


def existing_answers(cfg: PrepareDataConfig, target: Target | TextTarget, prompts: dict) -> AnswerSet | None:
    """The `answers` artifact that `answer_prompts` would find; ArtifactError if it would refuse it."""
    return answering.existing_answers(
        prompts,
        tokenizer=target.tokenizer,
        data=within_context(cfg.data, target.max_positions),
        path=artifact_dir(cfg.runs_dir, target.name, "answers", cfg.name or cfg.domain.name),
        target=target,
        config=recorded_settings(cfg, target),
        seed=cfg.seed,
        eos_ids=target.eos_ids,
        overwrite=cfg.overwrite,
    )


def recorded_settings(cfg: PrepareDataConfig, target: Target | TextTarget) -> dict:
    """The settings that an `answers` artifact records."""
    domain = to_dict(weighted_domain(cfg.domain))
    del domain["template"]  # recorded with `data` where it is read
    return {
        "domain": domain,
        "data": answer_settings(cfg),
        "seed": cfg.seed,
        "dtype": "served" if cfg.data.answers == "served" else str(target.dtype),
    }


def open_answerer(
    cfg: PrepareDataConfig,
    data: DataConfig,
    target: Target | TextTarget,
    name: str,
    progress: Callable[[int, int], None],
) -> Generate:
    """What answers prompts: a server of the target, or the target itself, which stores captures on the way."""
    if data.answers == "served":
        gaps = partial(logit_gaps, target) if isinstance(target, Target) else None
        return ServedAnswerer(target.tokenizer, data, target.eos_ids, progress, gaps)
    spool = open_spool(cfg, target, name)
    keep = spool.add if data.features == "cached" else None
    answerer = BatchAnswerer(target, data.batch_size, data.temperature, progress, keep)

    def answer_shard(prompts: list[list[int]], max_new_tokens: int, seed: int) -> list[list[int]]:
        answers = answerer(prompts, max_new_tokens, seed)
        spool.flush()  # before the shard counts as done: a run killed in between would lack its captures
        return answers

    return answer_shard


def weighted_domain(domain: DomainConfig) -> DomainConfig:
    """The domain without the parts of its mixture whose weight is 0."""
    return dataclasses.replace(domain, weights={name: weight for name, weight in domain.weights.items() if weight})


def answer_settings(cfg: PrepareDataConfig) -> dict:
    """The data settings that decide the content of answers."""
    ignored = {"batch_size", "shard_size", "features", "streaming", *STREAM_KEYS}
    ignored |= {"endpoint", "served_model", "retries", "timeout_s"}  # where the target answers, under which name
    ignored |= {key for key in ("licences", "domain_names") if not getattr(cfg.data, key)}  # older answers lack them
    settings = {key: value for key, value in to_dict(cfg.data).items() if key not in ignored | {"template"}}
    template = prompt_template(cfg.data, cfg.domain)
    return settings | ({"template": template} if template else {})


def open_features(cfg: TrainDrafterConfig, target: Target, answers: JoinedAnswers) -> JoinedFeatures:
    """Features of all answers to learn from; of a stream, of the validation answers."""
    if cfg.data.stream:
        return JoinedFeatures([validation_features(cfg, target, answer_set) for answer_set in answers.sets])
    return JoinedFeatures([features_of(cfg, target, answer_set) for answer_set in answers.sets])


def features_of(cfg: PrepareDataConfig, target: Target, answers: AnswerSet) -> FeatureSet | OnlineFeatures:
    """Features of one artifact's answers: cached on disk, or recomputed at every step."""
    capture = FeatureCapture(target)
    name = answers.path.name
    spool = open_spool(cfg, target, name)
    path = artifact_dir(cfg.runs_dir, target.name, "features", name)
    if cfg.data.features == "online":
        drop_spools(spool, path)
        return OnlineFeatures(answers, capture)

    def capture_rows(rows: Sequence[Answer]) -> Sequence[Captured]:
        return spool.capture(rows, capture)

    if cfg.data.source == "recorded":
        capture_rows = ServedCaptures(cfg.data.path, capture)
    with bar("capturing features", 1) as progress:
        features = prepare_features(
            answers,
            capture_rows,
            path=path,
            target=target,
            config=feature_settings(target),
            progress=progress.update,
            overwrite=cfg.overwrite,
        )
    drop_spools(spool, path)
    return features


def drop_spools(spool: CaptureSpool, features: Path) -> None:
    """Delete a spool, and those of dead writers with other layers or another dtype.  features: folder beside them."""
    spool.drop()
    delete_stale(features, ("spool",))


def has_features(cfg: PrepareDataConfig, target: Target, answers: AnswerSet) -> bool:
    """Whether the features of these answers are cached; ArtifactError if `features_of` would refuse them."""
    path = artifact_dir(cfg.runs_dir, target.name, "features", answers.path.name)
    return features_run(answers, path, target, feature_settings(target), cfg.overwrite).existing is not None


def feature_settings(target: Target) -> dict:
    """The settings that a `features` artifact records, beside its answers."""
    return {"taps": list(target.backbone.taps), "dtype": str(target.dtype)}


def packed(
    cfg: TrainDrafterConfig,
    answers: JoinedAnswers,
    features: JoinedFeatures,
    split: str,
    seed: int | None = None,
) -> PackedData:
    """Batches of a split's answers; of a mixture, those of the drafter's domain."""
    rows, read = answers.rows(split, cfg.domain.answers_domain), features.reader(split)
    return PackedData(rows, lambda indices: read(rows.locations[indices].tolist()), cfg.trainer.tokens_per_batch, seed)


def training_batches(
    cfg: TrainDrafterConfig, target: Target, answers: JoinedAnswers, features: JoinedFeatures
) -> PackedData | StreamedData:
    """Endless batches of the training answers, or those of a stream until it ends."""
    if cfg.data.stream:
        return streamed(cfg, target, answers)
    return packed(cfg, answers, features, "train", seed=cfg.seed)


def open_spool(cfg: PrepareDataConfig, target: Target, name: str) -> CaptureSpool:
    """Where answering stores the captures that features are made from."""
    features = artifact_dir(cfg.runs_dir, target.name, "features", name)
    suffix = f"{target.fingerprint[:8]}-{str(target.dtype).removeprefix('torch.')}"
    suffix += "".join(f"-{layer}" for layer in cfg.target.taps)
    return CaptureSpool(features.with_name(f".{name}.spool-{suffix}"))
