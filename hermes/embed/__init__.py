"""Open a runtime inside a Trio, a synchronous or an asyncio program.

None of these imports trio_asyncio. To read the code: trio_host, proxies, verbs, blocking_host,
asyncio_host, asyncio_bridge, asyncio_http.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes._lazy import lazy_names

if TYPE_CHECKING:
    from hermes.embed.agent import ReplyAgent as ReplyAgent, ReplyFunction as ReplyFunction
    from hermes.embed.asyncio_host import (
        AsyncioConversation as AsyncioConversation,
        AsyncioRuntime as AsyncioRuntime,
        open_runtime_asyncio as open_runtime_asyncio,
    )
    from hermes.embed.asyncio_http import open_http_app as open_http_app
    from hermes.embed.blocking_host import (
        BlockingConversation as BlockingConversation,
        BlockingRuntime as BlockingRuntime,
        start_runtime as start_runtime,
    )
    from hermes.embed.proxies import (
        AsyncioStream as AsyncioStream,
        AsyncioSubscription as AsyncioSubscription,
        BlockingStream as BlockingStream,
        BlockingSubscription as BlockingSubscription,
    )
    from hermes.embed.trio_host import (
        RuntimeOptions as RuntimeOptions,
        Setup as Setup,
        open_runtime as open_runtime,
    )

# A program on Trio does not import asyncio and anyio.
_NAMES = {
    "agent": "ReplyAgent ReplyFunction",
    "asyncio_host": "AsyncioConversation AsyncioRuntime open_runtime_asyncio",
    "asyncio_http": "open_http_app",
    "blocking_host": "BlockingConversation BlockingRuntime start_runtime",
    "proxies": "AsyncioStream AsyncioSubscription BlockingStream BlockingSubscription",
    "trio_host": "RuntimeOptions Setup open_runtime",
}
if not TYPE_CHECKING:
    __all__ = sorted(" ".join(_NAMES.values()).split())  # noqa: PLE0605 - the names above
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
