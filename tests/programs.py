"""Commands in processes of their own that are forked, so that they import nothing again."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import traceback
from typing import Any

import torch

from drafterforge.cli import main

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Program(subprocess.Popen):
    """`python -m drafterforge ...`, forked from this process; other programs are started as usual.

    Pipes, signals and exit codes are those of a program that is started; what tests have patched and cached is there,
    too, and functions registered with `atexit` do not run.  The processes that a training starts are forked as well.
    CUDA does not survive a fork, so where there is a GPU all programs are started.  Needs Linux.
    """

    def _execute_child(self, args: Any, *rest: Any) -> None:
        words = [word for word in args if word != "-P"] if isinstance(args, list) else []
        if words[1:3] != ["-m", "drafterforge"] or torch.cuda.is_available():
            super()._execute_child(args, *rest)
            return
        assert len(rest) == 22 and rest[3:5] == ((), None), "wanted the arguments of Python 3.11 to 3.13, and no cwd="
        pipes, preexec, env, new_session, group = rest[9:15], rest[1], rest[5], *rest[20:]
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child handles them
        self.pid = os.fork()
        if self.pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            self._child_created = True
            self._close_pipe_fds(*pipes)
            return
        code = 1
        try:
            atexit._clear()  # what the tests' process has to do at its end
            if new_session:
                os.setsid()
            if group >= 0:  # of subprocess's process_group=
                os.setpgid(0, group)
            if preexec is not None:
                preexec()
            if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if env is not None:
                os.environ.clear()
                os.environ.update(env)
            _use_streams(pipes[0], pipes[3], pipes[5])
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            subprocess.Popen = Program
            torch.set_num_threads(1)
            code = main(words[3:])
        except BaseException:
            traceback.print_exc()
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)


def _use_streams(*descriptors: int) -> None:
    """Make these the standard streams; -1 leaves one as it is.  The other files of the parent are closed."""
    copies = [os.dup(number if descriptor < 0 else descriptor) for number, descriptor in enumerate(descriptors)]
    for number, copy in enumerate(copies):
        os.dup2(copy, number)
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, nothing):  # replaced, because objects of the parent may still close them
            os.dup2(nothing, int(name), inheritable=False)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - until the process ends
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
