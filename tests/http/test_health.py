"""Health checks: whether the process lives, and whether it can take work."""

from __future__ import annotations

from contextlib import asynccontextmanager

import httpx2
import trio
import trio.testing

from hermes import open_runtime
from hermes.adapters.http import HttpConfig, open_app
from hermes.adapters.http.health import readiness
from hermes.testing import inline
from tests.support.faulty_vfs import Fault, FaultyVFS
from tests.support.http import echo, http_server


@asynccontextmanager
async def served(path, **options):
    """A client of an app without a socket, on the virtual clock."""
    async with open_runtime(path, agent=echo, open_worker=inline(), **options) as runtime:
        async with open_app(runtime, HttpConfig()) as app:
            transport = httpx2.ASGITransport(app=app)
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://127.0.0.1:8420"
            ) as client:
                yield runtime, client


async def test_they_need_no_token_and_say_nothing_else(path):
    async with http_server(path) as server:
        client = httpx2.AsyncClient(base_url=server.url)
        async with client:
            for name, text in (("/healthz", "ok\n"), ("/readyz", "ready\n")):
                answer = await client.get(name)
                assert (answer.status_code, answer.text) == (200, text)
                assert "server" not in answer.headers


async def test_a_store_that_cannot_commit_is_not_ready(path, autojump_clock):
    vfs = FaultyVFS()
    async with served(path, vfs=vfs.name) as (_, client):
        assert (await client.get("/readyz")).status_code == 200
        vfs.arm(Fault("xWrite", "full", 1, lasting=True))
        await trio.sleep(readiness.MAX_AGE)
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.text) == (503, "not ready\n")
        assert (await client.get("/healthz")).status_code == 200
        vfs.disarm()
        await trio.sleep(readiness.MAX_AGE)
        assert (await client.get("/readyz")).status_code == 200


async def test_many_checks_cost_one_commit(path, autojump_clock):
    commits = 0

    def count():
        nonlocal commits
        commits += 1

    async with open_runtime(path, agent=echo, open_worker=inline(count)) as runtime:
        check = readiness.Readiness()
        await check.check(runtime, "p")
        before = commits
        for _ in range(10):
            assert await check.check(runtime, "p")
        assert commits == before
        await trio.sleep(readiness.MAX_AGE)
        assert await check.check(runtime, "p")
        assert commits > before


async def test_a_runtime_that_drains_is_not_ready(path, autojump_clock):
    release, started = trio.Event(), trio.Event()

    async def agent(turn):
        started.set()
        await release.wait()
        return "done"

    async with open_runtime(path, agent=agent, open_worker=inline()) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.conversation("a:b:c").ask, "hello")
            await started.wait()
            nursery.start_soon(runtime.drain)
            await trio.testing.wait_all_tasks_blocked()
            assert not await readiness.Readiness().check(runtime, "p")
            release.set()


async def test_after_a_drain_it_is_not_ready(path, autojump_clock):
    async with served(path) as (runtime, client):
        assert (await client.get("/readyz")).status_code == 200
        await runtime.drain()
        await trio.lowlevel.checkpoint()  # at once, whatever the last check said
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200
