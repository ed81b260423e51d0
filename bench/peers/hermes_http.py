"""hermes-agent 0.19.0: its OpenAI-compatible API server with its real agent, in a new home.

The server is the adapter that its gateway starts for the platform `api_server`, without the rest of
the gateway, which takes no part in a request. It builds a new agent for every request. The agent
has no tools, like ours, and its own prompt.
"""

# ruff: noqa: SLF001 - the port and the stores of the server are private

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import AbstractContextManager, closing
from pathlib import Path

from gateway.config import PlatformConfig
from gateway.platforms.api_server import APIServerAdapter

from bench.harness.driver import check_durability
from bench.harness.sample_text import text
from bench.http.client import Address
from bench.http.measuring import Announce, main
from bench.peers import hermes_gateway

SECRET = "3f1c9be0a7d24c55"
# A new agent asks a model server about its context, unless that is set.
CONFIG = (
    hermes_gateway.CONFIG.replace("  context", "  ollama_num_ctx: 0\n  context")
    + """\
platform_toolsets:
  api_server: [no_mcp]
"""
)


async def serve(announce: Announce) -> None:
    """Serve until the process is killed."""
    settings = {"host": "127.0.0.1", "port": 0, "key": SECRET}
    server = APIServerAdapter(PlatformConfig(enabled=True, extra=settings))
    if not await server.connect():
        raise AssertionError("the API server did not start")
    for connection in (server._response_store._conn, server._ensure_session_db()._conn):
        check_durability(connection.execute)
    [(_, port)] = server._runner.addresses
    announce(Address(port, SECRET, answer=text(0, 0)))
    await asyncio.Event().wait()


def server(_path: str, _url: str, announce: Announce) -> None:
    """The home is that of this process."""
    asyncio.run(serve(announce))


def home(path: str, url: str) -> AbstractContextManager[Path]:
    return hermes_gateway.new_home(path, CONFIG, url)


def stored(path: str) -> int:
    """How many replies are stored."""
    with closing(sqlite3.connect(Path(path) / hermes_gateway.DATABASE)) as connection:
        rows = connection.execute("SELECT count(*) FROM messages WHERE role = 'assistant'")
        return int(rows.fetchone()[0])


if __name__ == "__main__":
    main(hermes_gateway.ABOUT, {"server": server}, home=home, stored=stored)
