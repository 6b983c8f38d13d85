"""How commands end that are stopped from outside: in order, and leaving nothing behind."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from isotropy.errors import InputError

STOPS = ("SIGTERM", "SIGHUP")


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """Lets what was begun be removed when the command is stopped, and says where output failed.

    A signal to stop ends the command as an exception does, with exit code 128 + its number. A
    reader of the output that has gone, such as `head`, ends it silently with exit code 1.
    """
    with _stoppable():
        try:
            yield
            if sys.stdout is not None:  # which is closed
                sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
            sys.exit(1)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _drop_output()
            raise InputError(
                "the output could not be written: the disk is full. Free some room, or "
                "write elsewhere."
            ) from error


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Signals that would end the process at once end it in order; what is ignored stays so."""
    old: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in STOPS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                old[number] = signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _stop(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough
    sys.exit(128 + number)


def _drop_output() -> None:
    """What is still to be flushed goes nowhere, or the end of the process would complain of it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
