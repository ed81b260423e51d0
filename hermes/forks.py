"""What happens in a forked process: nothing of the parent's runtimes can be used there.

Their threads run in the parent only, so a call would wait for ever. Objects that could wait for
such a thread register themselves and are told about the fork in the child.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

FORKED = (
    "the runtime was opened in the parent process, and cannot be used after a fork; "
    "open one in this process"
)


class Forkable(Protocol):
    """An object that must know that it was copied into a forked process."""

    def forked(self) -> None:
        """Handle the fork. Called in the child, in the thread that forked."""
        ...


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch_forks(forkable: Forkable) -> None:
    """Call `forked` in every process that is forked while the object exists."""
    _watched.add(forkable)


def _notify() -> None:
    for forkable in list(_watched):
        forkable.forked()


os.register_at_fork(after_in_child=_notify)
