"""SIGINT and SIGTERM as requests: training saves its state after the step under way, then ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from drafterforge.config.progress import say
from drafterforge.errors import Terminated

EXCEPTIONS: dict[int, type[KeyboardInterrupt]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


class Interruption:
    """The first signal requests the end, a second one forces it.  `fit` restores the handlers."""

    def __init__(self) -> None:
        self.signal_number = 0

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal_number != 0

    def listen(self) -> None:
        """Handle both signals from now on; they keep their handlers outside of the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in EXCEPTIONS:
                signal.signal(number, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal; raise on a second one."""
        if self.requested:
            raise EXCEPTIONS[number]
        self.signal_number = number
        say("training: stops after this step or validation; a second signal stops it at once")

    def end(self) -> None:
        """Raise KeyboardInterrupt for SIGINT, `Terminated` for SIGTERM."""
        raise EXCEPTIONS[self.signal_number]
