"""SIGINT and SIGTERM as requests: training saves its state after the step under way, then ends.

Of several ranks, all end after the same step, though a signal reaches them at different times.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from drafterforge.config.progress import say
from drafterforge.errors import Terminated
from drafterforge.training import ranks

STOPPING = "training: stops after this step or validation; a second signal stops it at once"
EXCEPTIONS: dict[int, type[KeyboardInterrupt]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


class Interruption:
    """The first signal requests the end, a second one forces it.  `fit` restores the handlers."""

    def __init__(self) -> None:
        self.signal_number = 0  # that this process received
        self.agreed_number = 0  # that all ranks know of

    @property
    def requested(self) -> bool:
        """Whether to end: a signal has arrived; of several ranks, before they last agreed."""
        return (self.agreed_number if ranks.is_joined() else self.signal_number) != 0

    def agree(self) -> None:
        """Tell all ranks of the signals that any of them received; every rank has to call it."""
        if ranks.is_joined():
            self.agreed_number = ranks.largest(self.signal_number)

    def listen(self) -> None:
        """Handle both signals from now on; they keep their handlers outside of the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in EXCEPTIONS:
                signal.signal(number, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal; raise on a second one."""
        if self.signal_number:
            raise EXCEPTIONS[number]
        self.signal_number = number
        try:
            say(STOPPING)
        except RuntimeError:  # the signal came while a line was written, and streams are not reentrant
            os.write(2, f"{STOPPING}\n".encode())

    def end(self) -> None:
        """Raise KeyboardInterrupt for SIGINT, `Terminated` for SIGTERM."""
        raise EXCEPTIONS[self.agreed_number or self.signal_number]
