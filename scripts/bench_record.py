"""What a benchmark writes with `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.targets.device import describe_device

import torch


def save_record(
    path: Path,
    bench: str,
    device: torch.device | str,
    dtype: str,
    figures: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] = (),
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write `{bench, created, device, dtype, figures, rows}`, as `scripts/results.py` reads it.

    device: or its description.  more: further keys.
    """
    record = {
        "bench": bench,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device if isinstance(device, str) else describe_device(device),
        "dtype": dtype,
        "figures": dict(figures),
        "rows": list(rows),
    }
    save_json_atomic(path, record | dict(more or {}))
