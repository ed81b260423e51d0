"""Composition roots for hosts: a runtime inside a Trio, a synchronous or an asyncio program.

Read: trio_host, blocking_host, asyncio_host. None of them imports trio_asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes._lazy import loader
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

# A program on Trio does not wait for asyncio and anyio.
__getattr__ = loader(
    __name__,
    {
        "asyncio_host": "AsyncioRuntime open_runtime_asyncio",
        "blocking_host": "BlockingRuntime start_runtime",
    },
)
