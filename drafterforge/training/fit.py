"""`Trainer.fit` without lightning's hints, and with Ctrl-C and SIGTERM as in every other step."""

from __future__ import annotations

import contextlib
import logging
import signal
import warnings
from typing import Any

import torch
from lightning import LightningModule, Trainer

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def quiet() -> None:
    """Silence lightning's hints; the pipelines say what matters."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"lightning\..*")


def device_options(device: torch.device) -> dict[str, Any]:
    """Arguments of `Trainer` that make it train on one device."""
    if device.type == "cuda":
        return {"accelerator": "gpu", "devices": [device.index or 0]}
    return {"accelerator": "cpu", "devices": 1}


def fit(trainer: Trainer, module: LightningModule, *loaders: Any, **options: Any) -> None:
    """`trainer.fit`; raises KeyboardInterrupt (`Terminated` for SIGTERM) when interrupted; restores signal handlers."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        trainer.fit(module, *loaders, **options)
    except SystemExit as error:  # lightning turns KeyboardInterrupt into exit(1)
        interrupt = error.__context__
        raise interrupt if isinstance(interrupt, KeyboardInterrupt) else KeyboardInterrupt from None
    finally:
        with contextlib.suppress(ValueError):  # only the main thread sets handlers
            for number, handler in handlers.items():
                signal.signal(number, handler)  # lightning leaves Ctrl-C ignored
    if trainer.interrupted:
        raise KeyboardInterrupt
