"""Retries that reach another node than the first request."""

from __future__ import annotations

import trio

from tests.support.cluster_nodes import SECONDS, with_lease
from tests.support.http_node import http_process
from tests.support.http_nodes import http_nodes
from tests.support.raw_http import connect, post, read_events, request_bytes

BODY = {"model": "hermes", "input": "?", "stream": True}


async def begun(stream, server, body, name):
    """Send a request; returns the events if its turn runs on the node with this name."""
    await stream.send_all(request_bytes(server, body))
    events = await read_events(stream, "response.output_text.delta")
    return events if events[-1]["delta"] == f"{name} " else None


async def test_a_retry_attaches_when_the_first_node_was_killed(postgres_url):
    async with http_nodes(postgres_url, "b") as nodes:
        here = nodes.servers["b"]
        nodes.agents.go.set()
        url = with_lease(postgres_url, 2.5)  # the retry comes long before its end
        async with http_process(url, "held", here.secret) as (process, first):
            await nodes.cluster.until(lambda: len(nodes.known("b")) == 2)
            events, number = None, 0
            with trio.fail_after(SECONDS):
                while events is None:
                    number += 1
                    body = {**BODY, "input": f"request {number}"}
                    async with connect(first) as stream:
                        events = await begun(stream, first, body, "held")
                        if events is not None:
                            process.kill()
            before = len(nodes.agents.ran)
            async with connect(here) as retry:
                await retry.send_all(request_bytes(here, body, retry=1))
                with trio.fail_after(SECONDS):
                    rest = await read_events(retry, "response.completed")
        final = rest[-1]["response"]
        assert final["id"] == events[0]["response"]["id"]
        said = [(item["status"], item["content"][0]["text"]) for item in final["output"]]
        assert said[-1] == ("completed", nodes.agents.text)
        assert [status for status, _ in said[:-1]] in ([], ["incomplete"])
        assert len(nodes.agents.ran) == before + 1


async def test_a_retry_takes_no_response_from_a_client_of_another_node(postgres_url):
    """Two clients say the same, and the request of one of them was lost before it was accepted."""
    async with http_nodes(postgres_url) as nodes:
        first, second = nodes.servers.values()
        plain = {"model": "hermes", "input": "?"}
        answers = []

        async def send(server, retry):
            answers.append(await post(server, plain, retry=retry))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, first, 0)
            await nodes.owner_and_other()
            nursery.start_soon(send, second, 1)
            await nodes.cluster.until(lambda: len(nodes.agents.ran) == 2)
            nodes.agents.go.set()
        assert [status for status, _ in answers] == [200, 200]
        assert len({body["id"] for _, body in answers}) == 2


async def test_a_retry_attaches_to_what_was_cut_on_another_node(postgres_url):
    async with http_nodes(postgres_url) as nodes:
        first, second = nodes.servers.values()
        async with connect(first) as stream:
            await stream.send_all(request_bytes(first, BODY))
            events = await read_events(stream, "response.output_text.delta")
        async with connect(second) as retry:
            await retry.send_all(request_bytes(second, BODY, retry=1))
            again = await read_events(retry, "response.output_text.delta")
            nodes.agents.go.set()
        assert again[0]["response"]["id"] == events[0]["response"]["id"]
        assert len(nodes.agents.ran) == 1
