"""agno 3.1.10: the server of its AgentOS, with an agent on an OpenAI-compatible model.

It has no OpenAI-compatible API, so it is asked by its own one. It is served like its `serve` does,
by uvicorn. Of its two stores for SQLite this is the faster one, which does not use asyncio.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from contextlib import closing
from importlib.metadata import version

import uvicorn
from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.models.openai import OpenAILike
from agno.os import AgentOS
from agno.os.settings import AgnoAPISettings

from bench.harness.driver import check_durability
from bench.harness.sample_text import text
from bench.http.client import Address
from bench.http.measuring import Announce, main

ABOUT = {"agno": version("agno"), "uvicorn": version("uvicorn"), "sqlite": sqlite3.sqlite_version}
SECRET = "3f1c9be0a7d24c55"


async def serve(path: str, url: str, announce: Announce) -> None:
    """Serve until the process is killed."""
    db = SqliteDb(db_file=path)
    agent = Agent(
        id="bench",
        model=OpenAILike(id="m", base_url=url, api_key="none"),
        system_message="Be kind.",
        db=db,
        add_history_to_context=True,
        telemetry=False,
    )
    settings = AgnoAPISettings(os_security_key=SECRET)
    app = AgentOS(agents=[agent], settings=settings, telemetry=False).get_app()
    with db.db_engine.connect() as connection:
        check_durability(connection.exec_driver_sql)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:  # noqa: ASYNC110 - it has no event for this
        await asyncio.sleep(0.01)
    announce(
        Address(
            listening.getsockname()[1],
            SECRET,
            path="/agents/bench/runs",
            form=True,
            token='"RunContent"',
            answer=text(0, 0),
        )
    )
    await serving


def server(path: str, url: str, announce: Announce) -> None:
    asyncio.run(serve(path, url, announce))


def stored(path: str) -> int:
    """How many runs are stored, each with its messages."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT count(*) FROM agno_runs WHERE status = 'COMPLETED'")
        return int(rows.fetchone()[0])


if __name__ == "__main__":
    main(ABOUT, {"server": server}, stored=stored)
