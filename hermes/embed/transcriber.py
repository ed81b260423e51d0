"""What `transcriber=` accepts."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeAlias

import attrs
import trio

from hermes.agents.remote_runtime import ThreadFile
from hermes.protocols import FileReader, RunsOnTrio, Transcriber

MAX_THREADS = 20

TranscribeFunction: TypeAlias = Callable[[FileReader], Awaitable[str]] | Callable[[ThreadFile], str]
"""The simplest transcriber: a function from an audio file to its text, plain or async."""


@attrs.frozen
class AsyncTranscriber:
    """A transcriber made of an async function."""

    function: Callable[[FileReader], Awaitable[str]]

    async def transcribe(self, audio: FileReader, /) -> str:
        """Return what the function returns."""
        return await self.function(audio)


@attrs.frozen
class ThreadTranscriber(RunsOnTrio):
    """A transcriber made of a plain function, which runs in a thread. It cannot be cancelled."""

    on_trio: ClassVar[bool] = True
    function: Callable[[ThreadFile], str]
    limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(MAX_THREADS))

    async def transcribe(self, audio: FileReader, /) -> str:
        """Return what the function returns; after a cancellation it is not waited for."""
        token = trio.lowlevel.current_trio_token()
        reader = ThreadFile(audio, lambda work: trio.from_thread.run(work, trio_token=token))
        return await trio.to_thread.run_sync(
            self.function, reader, abandon_on_cancel=True, limiter=self.limiter
        )


def as_transcriber(given: object) -> Transcriber | None:
    """Return the value of `transcriber=` as a transcriber. Raises `TypeError` if it is none."""
    if given is None:
        return None
    method: Any = getattr(given, "transcribe", None)  # a user's object, not checked before
    function = given if method is None else method
    if inspect.isclass(given) or not callable(function):
        raise TypeError(
            "transcriber must be an object with transcribe(audio), or a function of an audio file, "
            f"not {given!r:.50}"
        )
    if not _is_async(function):
        return ThreadTranscriber(function)
    return given if method is not None else AsyncTranscriber(function)  # type: ignore[return-value]


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )
