"""Show, take back, export or delete what was recorded and learned; `learn run` and `replay` have their own modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType

from rich.table import Table

from drafterforge.artifacts.atomic import is_locked
from drafterforge.artifacts.bundles import bundle_dir
from drafterforge.artifacts.learned import (
    JOINED,
    LEFT,
    LearnedRecord,
    LearnedVersion,
    delete_learned,
    learner_lock,
    require_learned_in,
    update_record,
)
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.manifest import MANIFEST, Manifest
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.hints import target_flags
from drafterforge.config.learn import LearnCommandConfig
from drafterforge.config.pool import PoolConfig
from drafterforge.config.progress import table_console
from drafterforge.data.answers import AnswerRows
from drafterforge.data.served import served_shards
from drafterforge.data.stream import MB, StreamRecord, erase_stream, used_bytes
from drafterforge.errors import ArtifactError, ConfigError

Config = LearnCommandConfig
RUNS, STOPPED = "running", "not running"


def run(cfg: Config) -> Path:
    if cfg.action == "replay":
        return _pipeline("learn_replay").run(cfg)
    folder = cfg.traffic_dir
    if (stream := StreamRecord.read(folder)) is None:
        if cfg.action == "status":
            print(f"nothing was recorded in {folder}; `drafterforge serve learn=on` records answers")
            return folder
        raise ArtifactError(
            f"{folder} holds no recorded traffic; start a server with `drafterforge serve learn=on`, or type target=, "
            "runs_dir= and learn.folder= as for the server"
        )
    recorded = stream.labels.get("target", cfg.target.folder_name)
    if recorded != cfg.target.folder_name:
        raise ConfigError(
            f"{folder} holds traffic of target {recorded!r}, but this command is for {cfg.target.folder_name!r}; "
            "type target= as the server was started with"
        )
    if cfg.action in ("rollback", "export", "delete"):
        require_learned_in(cfg.runs_dir, cfg.target.folder_name, folder)
    if cfg.action == "run":
        return _pipeline("learn_run").run(cfg)
    actions = {"status": show_status, "rollback": roll_back, "export": export_learned, "delete": delete}
    actions.get(cfg.action, set_frozen)(cfg)
    return folder


def _pipeline(name: str) -> ModuleType:
    """A module of pipelines/ that imports what takes seconds to load."""
    return import_module(f"drafterforge.pipelines.{name}")


def describe(version: LearnedVersion) -> str:
    """A version in one line."""
    return (
        f"{version.name} of {version.num_train} answers: {version.gain:+.1%} tokens a cycle over {version.rival} on "
        f"{version.num_judged} newer requests ({version.low:+.1%} to {version.high:+.1%}), {version.state}"
    )


def show_status(cfg: Config) -> None:
    """Print what was recorded and learned; nothing of its texts."""
    folder, shards = cfg.traffic_dir, [*served_shards(cfg.traffic_dir)]
    record, learned = StreamRecord.read(folder), LearnedRecord.read(folder)
    table = Table(title=f"traffic in {folder}", title_justify="left", show_header=False)
    table.add_row("target", str(record.labels.get("target", "")))
    num_answers = sum(len(rows) for _, rows in shards)
    table.add_row("answers", f"{num_answers:,} now, {record.answers:,} recorded in all")
    table.add_row("tokens", f"{sum(int(rows.lengths.sum()) for _, rows in shards):,}")
    table.add_row("size", f"{used_bytes(folder) / MB:,.1f} of {record.limit_bytes / MB:,.0f} MB")
    if (oldest_s := min(write_times(shards), default=None)) is not None:
        table.add_row("oldest", datetime.fromtimestamp(oldest_s).isoformat(" ", "minutes"))
    table.add_row("recording", RUNS if is_locked(folder) else STOPPED)
    table.add_row("learning", "frozen" if learned.frozen else RUNS if is_locked(learner_lock(folder)) else STOPPED)
    for kind, count in (learned.fresh or {"all kinds": num_answers}).items() if learned.min_answers else ():
        table.add_row("next expert", f"{kind}: {count} new prompts at the last look; needs {learned.min_answers}")
    for version in learned.versions:
        table.add_row("learned", describe(version))
    for error in filter(None, (record.error, learned.error)):
        table.add_row("error", error)
    table_console().print(table)
    typed = f"{target_flags(cfg)}{cfg.learn.folder_flag}"
    if learned.frozen:
        print(f"frozen; to go on learning, type `drafterforge learn thaw{typed}`")
    if num_answers >= cfg.learn.min_answers:
        print(f"next: drafterforge train-drafter data=traffic path={folder}{target_flags(cfg)}")
    elif num_answers:
        print(f"next: serve further requests; an expert learns from {cfg.learn.min_answers} answers or more")
    else:
        print("no answers are on disk; a server with learn=on writes each within 30 seconds of its end")


def write_times(shards: Sequence[tuple[Path, AnswerRows]]) -> Iterator[float]:
    """Seconds since 1970 at which shards were written; without those that a full ring has deleted since."""
    for path, _ in shards:
        with suppress(FileNotFoundError):
            yield path.stat().st_mtime


def roll_back(cfg: Config) -> None:
    """Let an expert leave, the newest unless one is named; the one of its kind that it replaced drafts again."""
    left: list[LearnedVersion] = []

    def change(record: LearnedRecord) -> LearnedRecord:
        if not (joined := record.of_state(JOINED)):
            raise ConfigError("no expert that was learned from traffic drafts; type `drafterforge learn status`")
        names = [version.name for version in joined]
        if cfg.name and cfg.name not in names:
            raise ConfigError(f"no learned expert {cfg.name} drafts; type name= with one of {', '.join(names)}")
        left.append(joined[names.index(cfg.name) if cfg.name else -1])
        record = record.with_state(left[0].name, LEFT)
        return record.with_state(left[0].replaces, JOINED) if may_return(left[0].replaces) else record

    def may_return(name: str) -> bool:
        path = [cfg.runs_dir, cfg.target.folder_name, "drafters", name]
        return bool(name) and (artifact_dir(*path) / MANIFEST).exists()

    drafters = update_record(cfg.traffic_dir, change).drafters
    print(f"{left[0].name} left; {left[0].kind} is drafted by {drafters.get(left[0].kind, 'the drafters before')}")


def export_learned(cfg: Config) -> None:
    """Pack the experts that draft into a bundle, with the generalists that they add to."""
    names = [version.name for version in LearnedRecord.read(cfg.traffic_dir).of_state(JOINED)]
    if not names:
        raise ConfigError("no expert that was learned from traffic drafts; type `drafterforge learn status`")
    config = ExportConfig(target=cfg.target, bundle=cfg.output_name, runs_dir=cfg.runs_dir)
    if (bundle := bundle_dir(config)).exists():
        raise ConfigError(f"{bundle} exists already; type name=OTHER")
    folders = [artifact_dir(cfg.runs_dir, cfg.target.folder_name, "drafters", name) for name in names]
    parents = [parent for folder in folders for parent in Manifest.read(folder).parents]
    generalists = dict.fromkeys(parent["name"] for parent in parents if parent["kind"] == "drafters")
    pool = PoolConfig(drafters=[*generalists, *(name for name in names if name not in generalists)])
    path = _pipeline("export").run(replace(config, pool=pool))
    print(f"wrote {path}; next: drafterforge serve bundle={cfg.output_name}{target_flags(cfg)}")


def set_frozen(cfg: Config) -> None:
    """Freeze or thaw."""
    update_record(cfg.traffic_dir, lambda record: replace(record, frozen=cfg.action == "freeze"))
    thaw = f"drafterforge learn thaw{target_flags(cfg)}{cfg.learn.folder_flag}"
    print(f"no expert is learned until `{thaw}`" if cfg.action == "freeze" else "learning goes on")


def delete(cfg: Config) -> None:
    """Delete all recorded answers, also those that a running server holds, and the experts learned from them.

    After a kill at any moment, the same command deletes the rest.
    """
    erase_stream(cfg.traffic_dir)

    def leave(record: LearnedRecord) -> LearnedRecord:
        versions = [replace(version, state=LEFT) for version in record.versions]
        return replace(record, versions=versions, newest={}, fresh={}, error="", num_deletions=record.num_deletions + 1)

    record = update_record(cfg.traffic_dir, leave)
    names = [version.name for version in record.versions] + ([record.training] if record.training else [])
    folders = [artifact_dir(cfg.runs_dir, cfg.target.folder_name, "drafters", name) for name in names]
    num_drafters = sum(folder.exists() for folder in folders)
    delete_learned(cfg.runs_dir, cfg.target.folder_name, names)

    def forget(current: LearnedRecord) -> LearnedRecord:
        return replace(current, versions=[version for version in current.versions if version.name not in names])

    update_record(cfg.traffic_dir, forget)
    print(f"deleted all recorded answers in {cfg.traffic_dir}, and {num_drafters} drafters learned from them")
