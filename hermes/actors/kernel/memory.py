"""What must work without memory: a waiting task is resumed, or the process ends with a code.

Any allocation can raise `MemoryError`. A task that nobody resumes would wait forever, without a
line in the log, so what resumes tasks allocates as little as possible.
"""

from __future__ import annotations

import os
from typing import Final, NoReturn

from outcome import Error, Value
from trio import CancelScope
from trio.lowlevel import Task, reschedule

EX_SOFTWARE = 70
_LAST_WORDS = b"hermes: out of memory: a task cannot be resumed or cancelled; exiting\n"
_SPARE: Final = [Value(None) for _ in range(100)]  # each can be used once

OUT_OF_MEMORY: Final = Error(MemoryError("no memory was left for the answer"))
"""The answer to a request if there is no memory for another one. Must not be unwrapped."""


def resume(task: Task) -> None:
    """Reschedule a task that waits, even without memory, or else end the process."""
    try:
        reschedule(task)
    except MemoryError:
        _resume_without_memory(task)


def _resume_without_memory(task: Task) -> None:
    try:
        reschedule(task, _SPARE.pop())
    except (AssertionError, IndexError, MemoryError):
        end_process()  # Trio takes the task for scheduled, and will never run it


def cancel(scope: CancelScope) -> None:
    """Cancel a scope, or else end the process: Trio cancels no scope twice."""
    try:
        scope.cancel()
    except MemoryError:
        end_process()


def end_process() -> NoReturn:
    """End the process at once, with a code, and say why."""
    os.write(2, _LAST_WORDS)
    os._exit(EX_SOFTWARE)
