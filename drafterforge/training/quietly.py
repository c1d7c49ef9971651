"""Lightning without its hints, and with Ctrl-C as everywhere else."""

from __future__ import annotations

import contextlib
import logging
import signal
import warnings
from typing import Any

from lightning import LightningModule, Trainer


def quiet() -> None:
    """Keep lightning's hints to itself; the pipelines say what matters."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"lightning\..*")


def fit(trainer: Trainer, module: LightningModule, *loaders: Any, **options: Any) -> None:
    """`trainer.fit`; raises KeyboardInterrupt when interrupted; signal handlers stay as they were."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(module, *loaders, **options)
    except SystemExit:
        raise KeyboardInterrupt from None  # lightning turns Ctrl-C into exit(1)
    finally:
        with contextlib.suppress(ValueError):  # only the main thread sets handlers
            signal.signal(signal.SIGINT, handler)  # lightning leaves Ctrl-C ignored
    if trainer.interrupted:
        raise KeyboardInterrupt
