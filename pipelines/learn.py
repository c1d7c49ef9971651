"""Show or delete what `serve learn=on` has recorded."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from rich.table import Table

from drafterforge.config.learn import LearnCommandConfig
from drafterforge.config.progress import table_console
from drafterforge.data.served import served_shards
from drafterforge.data.stream import MB, StreamRecord, erase_stream, used_bytes
from drafterforge.errors import ArtifactError

Config = LearnCommandConfig


def run(cfg: Config) -> Path:
    folder = cfg.traffic_dir
    record = StreamRecord.read(folder)
    if record is None:
        raise ArtifactError(f"{folder} holds no recorded traffic; start a server with `drafterforge serve learn=on`")
    {"status": show_status, "delete": delete}[cfg.action](folder, record)
    return folder


def show_status(folder: Path, record: StreamRecord) -> None:
    """Print what the ring holds; nothing of its texts."""
    shards = [*served_shards(folder)]
    table = Table(title=f"traffic in {folder}", title_justify="left", show_header=False)
    table.add_row("target", str(record.labels.get("target", "")))
    table.add_row("answers", f"{sum(len(rows) for _, rows in shards):,} now, {record.answers:,} recorded in all")
    table.add_row("tokens", f"{sum(int(rows.lengths.sum()) for _, rows in shards):,}")
    table.add_row("size", f"{used_bytes(folder) / MB:,.1f} of {record.limit_bytes / MB:,.0f} MB")
    if shards:
        oldest = datetime.fromtimestamp(min(path.stat().st_mtime for path, _ in shards))
        table.add_row("oldest", oldest.isoformat(" ", "minutes"))
    if record.error:
        table.add_row("error", record.error)
    table_console().print(table)
    print(f"next: drafterforge train-drafter data=traffic path={folder}")


def delete(folder: Path, record: StreamRecord) -> None:
    """Delete all recorded answers, also those that a running server holds."""
    erase_stream(folder)
    print(f"deleted all recorded answers in {folder}")
