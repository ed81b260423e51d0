"""Clients whose requests go to any of several nodes, on one PostgreSQL server."""

from __future__ import annotations

import openai
import pytest
import trio

from hermes.events import ApprovalAsked
from tests.support.cluster_nodes import SECONDS, cluster_of, with_lease
from tests.support.event_clients import open_events
from tests.support.http import http_server
from tests.support.http_nodes import http_nodes
from tests.support.raw_http import connect, read_events, request_of_stream

MILLION = 1_000_000


async def read(stream):
    """Read a stream of the SDK to its end."""
    with trio.fail_after(SECONDS):
        return [event async for event in stream]


async def begin(server, response_id, after=-1):
    """Stream a response up to its first word, then cut the connection; returns the events."""
    path = f"/v1/responses/{response_id}?stream=true&starting_after={after}"
    async with connect(server) as stream:
        await stream.send_all(request_of_stream(server, path))
        with trio.fail_after(SECONDS):
            return await read_events(stream, "response.output_text.delta")


async def started(nodes, server=None):
    """Create a response in the background; returns it, the server of its owner, and another one."""
    client = (server or nodes.servers["a"]).openai()
    created = await client.responses.create(model="hermes", input="?", background=True)
    return created, *await nodes.owner_and_other()


def text_of(events):
    return "".join(each.delta for each in events if each.type == "response.output_text.delta")


async def test_a_response_of_another_node_is_streamed_and_retrieved(postgres_url):
    async with http_nodes(postgres_url) as nodes:
        created, owner, other = await started(nodes)
        client = other.openai()
        assert (await client.responses.retrieve(created.id)).status == "in_progress"
        stream = await client.responses.retrieve(created.id, stream=True)
        nodes.agents.go.set()
        events = await read(stream)
        assert text_of(events) == "It is so"
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(numbers[0], numbers[0] + len(events)))
        final = events[-1].response
        assert final.status == "completed"
        for server in (owner, other):
            assert await server.openai().responses.retrieve(created.id) == final
        assert nodes.agents.ran == [nodes.agents.ran[0]]


async def test_a_client_goes_on_at_another_node_and_back(postgres_url):
    """Each node numbers the frames itself; with any of its numbers a client gets a whole stream."""
    async with http_nodes(postgres_url) as nodes:
        created, owner, other = await started(nodes)
        first = await begin(owner, created.id)
        item_id, seen = first[-1]["item_id"], first[-1]["sequence_number"]
        recorded = "SELECT id FROM responses WHERE items LIKE %s"
        await nodes.cluster.until(lambda: nodes.cluster.sql(recorded, f"%{item_id}%"))
        for server in (other, owner, other):
            events = await begin(server, created.id, seen)
            assert events[0]["type"] == "response.created"
            assert events[0]["response"]["output"] == []
            assert events[0]["sequence_number"] > seen
            assert events[-1]["item_id"] == item_id
            seen = events[-1]["sequence_number"]
        stream = await other.openai().responses.retrieve(
            created.id, stream=True, starting_after=seen
        )
        nodes.agents.go.set()
        rest = await read(stream)
        assert rest[0].sequence_number == seen + 1  # this node still has its frames
        final = rest[-1].response
        assert [(item.status, item.id) for item in final.output] == [("completed", item_id)]
        assert final.output_text == "It is so"
        for server in (owner, other):
            assert await server.openai().responses.retrieve(created.id) == final
            stream = await server.openai().responses.retrieve(
                created.id, stream=True, starting_after=seen + MILLION * 3
            )
            assert (await read(stream))[-1].response == final


async def test_a_response_is_cancelled_at_another_node(postgres_url):
    async with http_nodes(postgres_url) as nodes:
        created, owner, other = await started(nodes)
        with trio.fail_after(5):
            cancelled = await other.openai().responses.cancel(created.id)
        assert cancelled.status == "cancelled"
        assert (await owner.openai().responses.retrieve(created.id)).status == "cancelled"


async def test_what_waits_is_withdrawn_at_another_node(postgres_url):
    async with http_nodes(postgres_url) as nodes:
        client = nodes.servers["a"].openai()
        conversation = await client.conversations.create()
        options = {"model": "hermes", "background": True, "conversation": conversation.id}
        await client.responses.create(input="first", **options)
        _, other = await nodes.owner_and_other()
        queued = await other.openai().responses.create(input="second", **options)
        for server in nodes.servers.values():
            assert (await server.openai().responses.retrieve(queued.id)).status == "queued"
        cancelled = await other.openai().responses.cancel(queued.id)
        assert cancelled.status == "cancelled"
        nodes.agents.go.set()


@pytest.mark.parametrize("keyed", [True, False])
async def test_equal_requests_at_once_on_two_nodes(postgres_url, keyed):
    """With an idempotency key there is one response; without, each request has one."""
    async with http_nodes(postgres_url) as nodes:
        nodes.agents.go.set()
        headers = {"Idempotency-Key": "same"} if keyed else {}
        found = []

        async def create(server):
            client = server.openai()
            for _ in range(3):
                made = client.responses.create(model="hermes", input="?", extra_headers=headers)
                found.append(await made)

        async with trio.open_nursery() as nursery:
            for server in nodes.servers.values():
                nursery.start_soon(create, server)
        assert len({each.id for each in found}) == (1 if keyed else 6)
        assert {each.output_text for each in found} == {"It is so"}
        assert len(nodes.agents.ran) == (1 if keyed else 6)
        if keyed:
            with pytest.raises(openai.UnprocessableEntityError):
                await (
                    nodes.servers["b"]
                    .openai()
                    .responses.create(model="hermes", input="another", extra_headers=headers)
                )


class Approving:
    """The agents of all nodes ask before they act."""

    def __init__(self):
        self.texts = []

    def __call__(self, name):
        async def answer(turn):
            self.texts.append(turn.text)
            if len(self.texts) > 1:
                return "It is done."
            asked = await turn.records.ask_approval(turn.session_key, "erase", "{}")
            turn.emit(ApprovalAsked(asked))
            return "I have asked."

        return answer


async def test_an_approval_is_answered_at_another_node(postgres_url):
    agents = Approving()
    async with http_nodes(postgres_url, agents=agents) as nodes:
        first, second = [server.openai() for server in nodes.servers.values()]
        asked = await first.responses.create(model="hermes", input="Erase it.")
        [question] = [item for item in asked.output if item.type == "mcp_approval_request"]
        decision = {
            "type": "mcp_approval_response", "approval_request_id": question.id, "approve": True,
        }  # fmt: skip
        done = await second.responses.create(
            model="hermes", input=[decision], previous_response_id=asked.id
        )
        assert done.output_text == "It is done."
        assert len(agents.texts) == 2
        with pytest.raises(openai.BadRequestError, match="approved before"):
            await first.responses.create(
                model="hermes", input=[decision], previous_response_id=done.id
            )


async def test_the_list_shows_what_happens_on_another_node(postgres_url):
    async with http_nodes(postgres_url) as nodes:
        nodes.agents.go.set()
        path = "/api/conversations/name:a/messages"
        await nodes.servers["a"].http().post(path, json={"text": "one"})
        owner, other = await nodes.owner_and_other()
        await nodes.cluster.all_answered()
        async with open_events(other, "/api/events") as stream:
            kind, data = await stream.next()
            assert kind == "reset"
            [listed] = data["conversations"]
            await owner.http().post(path, json={"text": "two"})
            with trio.fail_after(SECONDS):
                seen = listed
                while seen["message_count"] < 4:
                    kind, data = await stream.next()
                    assert kind == "conversation"
                    seen = data["conversation"]
            assert seen["session_key"] == listed["session_key"]


async def test_uploaded_files_are_served_by_every_node(postgres_url):
    async with http_nodes(postgres_url) as nodes:
        first, second = [server.openai() for server in nodes.servers.values()]
        made = await first.files.create(file=("a.txt", b"hello"), purpose="assistants")
        assert (await second.files.content(made.id)).content == b"hello"
        await second.files.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await first.files.retrieve(made.id)


async def test_a_node_without_a_lease_is_not_ready(postgres_url):
    async with http_server(with_lease(postgres_url, 60)) as server:
        cluster_of(server.runtime)._beat.lease.end()  # it is renewed after 15 seconds
        answer = await server.http().get("/readyz")
        assert answer.status_code == 503
