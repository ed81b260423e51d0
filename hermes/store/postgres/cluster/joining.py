"""How a runtime joins the nodes of a PostgreSQL database, and leaves them."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from hermes.background import open_background, protected
from hermes.store.cluster.alone import NoHints
from hermes.store.engine import ClusterStore
from hermes.store.postgres.address import Address
from hermes.store.postgres.cluster.membership import Membership
from hermes.store.postgres.cluster.node import PostgresCluster
from hermes.store.postgres.connection import PostgresConnection
from hermes.store.postgres.driver import connect
from hermes.store.postgres.hints import open_hints
from hermes.store.worker import run_in_thread

R = TypeVar("R")


@protected
async def join(
    address: Address, writer: PostgresConnection, store: ClusterStore, *, threads: bool
) -> AsyncIterator[PostgresCluster]:
    """Be a node of the database during the block.

    Without `threads`, as in tests with an inline store, there are no hints to other nodes.
    """
    name = address.node or f"{socket.gethostname()}:{os.getpid()}"
    membership = Membership(lambda: connect(address), name, address.lease)
    run = run_in_thread if threads else _run_at_once
    try:
        while (first := await run(membership.beat)) is None:  # noqa: ASYNC110 - a retry
            await trio.sleep(membership.interval)
        cluster = PostgresCluster(store, writer, membership, first)
        hints = open_hints(lambda: connect(address), cluster.node) if threads else _no_hints()
        async with hints as cluster.hints:
            async with open_background() as nursery:
                with cluster.listening():
                    cluster.start(nursery, threads=threads)
                    yield cluster
            await _leave(run, membership)
            cluster.hint_others()
    finally:
        await _leave(run, membership)


async def _leave(run: Callable[[Callable[[], None]], Awaitable[None]], of: Membership) -> None:
    with trio.CancelScope(shield=True):
        await run(of.close)


async def _run_at_once(function: Callable[[], R]) -> R:
    return function()


@asynccontextmanager
async def _no_hints() -> AsyncIterator[NoHints]:
    yield NoHints()
