"""Composition roots for hosts: a runtime inside a Trio, a synchronous or an asyncio program.

Read: trio_host, blocking_host, asyncio_host. None of them imports trio_asyncio.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hermes.embed.trio_host import ReplyAgent as ReplyAgent, open_runtime as open_runtime

if TYPE_CHECKING:
    from hermes.embed.asyncio_host import (
        AsyncioRuntime as AsyncioRuntime,
        open_runtime_asyncio as open_runtime_asyncio,
    )
    from hermes.embed.blocking_host import (
        BlockingRuntime as BlockingRuntime,
        start_runtime as start_runtime,
    )

# Loaded when they are asked for: a program on Trio does not wait for asyncio and anyio.
_WHERE = {
    "AsyncioRuntime": "asyncio_host",
    "open_runtime_asyncio": "asyncio_host",
    "BlockingRuntime": "blocking_host",
    "start_runtime": "blocking_host",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'hermes.embed' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hermes.embed.{_WHERE[name]}"), name)
