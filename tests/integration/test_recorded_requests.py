"""What a runtime records of its calls of models, and the requests that are rebuilt from it."""

from __future__ import annotations

import hashlib

import attrs
import pytest
import trio

from hermes import Attachment, CompressionConfig, Config, TextDelta, TurnResult
from hermes.agents import Endpoint, Retries, Secret, chat_agents, tool
from hermes.messages import ToolCall
from hermes.store import SessionStore
from hermes.testing import Drip, ModelAnswer, Refuse, open_model
from tests.support.compression import SMALL, ScriptedCompressor

KEY = "sk-test-0123456789abcdef"
SYSTEM = "You are kind."
ROOMY = CompressionConfig(window=4000, max_output=10, tail_share=0.05, protect_first=0)
FAST = Retries(max_attempts=2, first_delay=0.0)


@pytest.fixture
def workers():
    """The store runs in threads, as in production."""
    return "threads"


@pytest.fixture(params=["openai", "anthropic"])
def protocol(request):
    return request.param


def endpoint(model, protocol="openai", **options):
    url = model.openai_url if protocol == "openai" else model.anthropic_url
    return Endpoint(base_url=url, model="m", name="the model", key=Secret(KEY), **options)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADDS = ModelAnswer("let me see", calls=[ToolCall("c1", "add", '{"a": 2, "b": 3}')])


def digests(model):
    return [hashlib.sha256(request.body).hexdigest() for request in model.requests]


async def rebuilt(runtime, key="k"):
    """Rebuild all calls of a conversation, the oldest first: (body, verdict, digest)."""
    found = []
    for turn in reversed(await runtime.api.past_turns(key)):
        for number, call in enumerate(turn.calls):
            made = await runtime.api.rebuild_call(key, turn.turn_id, number)
            found.append((made.body, made.verdict, call.digest))
    return found


async def check_all(runtime, model, key="k"):
    """Every request of the model is rebuilt byte for byte."""
    found = await rebuilt(runtime, key)
    assert [verdict for _, verdict, _ in found] == ["same"] * len(model.requests)
    assert [body for body, _, _ in found] == [request.body for request in model.requests]
    assert [digest for *_, digest in found] == digests(model)


async def test_each_request_is_rebuilt_byte_for_byte_after_a_restart(start, protocol):
    async with (
        open_model(["hi", ADDS, "it is 5", "it still is", "welcome"]) as model,
        chat_agents(
            endpoint(model, protocol, parameters=(("temperature", 0.5),)),
            protocol=protocol,
            system=SYSTEM,
            tools=[add],
            facts=lambda turn: f"It is turn {turn.turn_id}.",
        ) as agents,
    ):
        for texts in (["hello", "add 2 and 3"], ["and again", "thanks"]):
            async with start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime:
                for text in texts:
                    await runtime.ask("k", text)
                await check_all(runtime, model)
    assert len(model.requests) == 5


async def test_a_turn_says_what_the_agent_was_given_and_answered(start):
    async with (
        open_model([ADDS, "it is 5"]) as model,
        chat_agents(endpoint(model), system=SYSTEM, tools=[add], facts=lambda _: "Now.") as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        reply = await runtime.ask("k", "add 2 and 3")
        turn = await runtime.api.past_turn("k", reply.turn_id)
        given = await runtime.api.call_rows("k", reply.turn_id, 1)
        [listed] = await runtime.api.past_turns("k")
    first, second = turn.calls
    assert first.system is not None
    assert (first.system.text, second.system) == (SYSTEM, first.system)
    assert '"Now."' in second.injected.text
    assert '"add"' in first.tools.text
    assert '"m"' in first.settings.text
    assert [row.role for row in turn.messages] == ["user", "assistant", "tool", "assistant"]
    assert [row.role for row in given.turn] == ["user", "assistant", "tool"]
    assert (turn.status, turn.error, turn.row_count, first.error) == ("complete", None, 4, None)
    assert first.usage.output_tokens > 0
    assert [(event.kind, event.name, event.failed) for event in turn.events] == [
        ("tool", "add", False)
    ]
    assert turn.events[0].duration is not None
    assert second.started >= turn.events[0].started >= first.started
    assert turn.started_at <= turn.ended_at
    assert (listed.turn_id, len(listed.calls), listed.messages) == (reply.turn_id, 2, ())


@pytest.mark.parametrize("alternate", [False, True])
async def test_undone_and_repeated_messages_leave_gaps_that_are_known(start, protocol, alternate):
    async with (
        open_model([ADDS, "it is 5", "hello"] * 12) as model,
        chat_agents(
            endpoint(model, protocol, alternate_roles=alternate), protocol=protocol, tools=[add]
        ) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        conversation = runtime.conversation("k")
        for n in range(12):
            await runtime.ask("k", f"add {n}")
            await runtime.ask("k", "hello")
            await (conversation.undo() if n % 2 else conversation.retry())
        await check_all(runtime, model)


async def test_files_are_part_of_the_rebuilt_request(start, protocol):
    png = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (3).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    async with (
        open_model() as model,
        chat_agents(endpoint(model, protocol), protocol=protocol) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        await runtime.ask("k", "look", attachments=[Attachment(data=png, name="a.png")])
        await runtime.ask("k", "read", attachments=[Attachment(data=b"some text", name="a.txt")])
        bodies = await rebuilt(runtime)
    assert [verdict for _, verdict, _ in bodies] == ["same", "same"]
    assert b"some text" in bodies[1][0]


async def test_a_compressed_conversation_is_rebuilt_before_and_after(start):
    async with (
        open_model(lambda _: "fine " * 40) as model,
        chat_agents(endpoint(model)) as agents,
        start(
            build_agent=agents.build,
            agent_spec=agents.agent_spec,
            compressor=ScriptedCompressor(),
            config=Config(compression=SMALL),
        ) as runtime,
    ):
        replies = [await runtime.ask("k", f"hello {n} " + "word " * 40) for n in range(12)]
        await check_all(runtime, model)
    assert len({reply.session_id for reply in replies}) > 1


async def test_a_request_that_was_too_long_belongs_to_the_session_before(start):
    async with (
        open_model(faults=[None] * 5 + [Refuse("too_long")]) as model,
        chat_agents(endpoint(model)) as agents,
        start(
            build_agent=agents.build,
            agent_spec=agents.agent_spec,
            compressor=ScriptedCompressor(),
            config=Config(compression=ROOMY),
        ) as runtime,
    ):
        replies = [await runtime.ask("k", f"hello {n} " + "word " * 40) for n in range(6)]
        await check_all(runtime, model)
        past = [await runtime.api.past_turn("k", reply.turn_id) for reply in replies]
    [failed] = [call for turn in past for call in turn.calls if call.error]
    assert failed.error == "ContextOverflow"
    assert failed.session_id == replies[0].session_id != replies[-1].session_id


async def test_a_turn_that_fails_is_recorded(start):
    async with (
        open_model(faults=[Refuse("bad_key"), *[Refuse("server_error")] * 2]) as model,
        chat_agents(endpoint(model)) as agents,
        start(
            build_agent=attrs.evolve(agents, retries=FAST).build, agent_spec=agents.agent_spec
        ) as runtime,
    ):
        for text in ("one", "two"):
            await runtime.ask("k", text)
        await check_all(runtime, model)
        second, first = await runtime.api.past_turns("k")
    assert (first.status, [call.error for call in first.calls]) == (
        "failed", ["AuthenticationFailed"],
    )  # fmt: skip
    assert "rejected the API key" in first.error
    assert [call.error for call in second.calls] == ["Unavailable", "Unavailable"]
    assert [event.kind for event in second.events] == ["retry"]


async def test_a_turn_that_is_interrupted_is_recorded(start):
    async with (
        open_model(["a b c " * 100], [Drip(1.0)]) as model,
        chat_agents(endpoint(model)) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        async with trio.open_nursery() as nursery:
            events = runtime.conversation("k").follow()
            nursery.start_soon(runtime.ask, "k", "hello")
            async with events:
                async for envelope in events:
                    if isinstance(envelope.event, TextDelta):
                        break
            await runtime.conversation("k").interrupt()
        await check_all(runtime, model)
        [turn] = await runtime.api.past_turns("k")
    assert (turn.status, turn.calls[0].error) == ("interrupted", "interrupted")
    assert turn.calls[0].usage is not None
    assert turn.calls[0].first is not None


async def test_an_agent_without_our_client_has_a_turn_without_calls(start):
    async def agent(turn):
        return TurnResult(text="fine")

    async with start(agent=agent) as runtime:
        reply = await runtime.ask("k", "hello")
        turn = await runtime.api.past_turn("k", reply.turn_id)
    assert (turn.calls, [row.content for row in turn.messages]) == ([], ["hello", "fine"])


async def test_one_setting_turns_it_off(start, path):
    async with (
        open_model() as model,
        chat_agents(endpoint(model), system=SYSTEM) as agents,
        start(
            build_agent=agents.build,
            agent_spec=agents.agent_spec,
            config=Config(record_turns=False),
        ) as runtime,
    ):
        await runtime.ask("k", "hello")
        assert await runtime.api.past_turns("k") == []
    with SessionStore(path) as store:
        for table in ("turns", "contents", "session_contents"):
            rows = store.snapshot(lambda tx, table=table: tx.all(f"SELECT * FROM {table}"))
            assert rows == [], table


async def test_secrets_are_removed_before_anything_is_stored(start, path):
    secret = "hunter2-hunter2-hunter2"

    @tool
    def look(word: str = secret) -> str:
        """Look."""
        return word

    async with (
        open_model() as model,
        chat_agents(
            endpoint(model, parameters=(("user", KEY), ("note", secret))),
            system=f"Your key is {KEY}, the password {secret}.",
            tools=[look],
            facts=lambda _: f"{secret} is the password",
        ) as agents,
        start(
            build_agent=agents.build,
            agent_spec=agents.agent_spec,
            redact=lambda text: text.replace(secret, "…"),
        ) as runtime,
    ):
        reply = await runtime.ask("k", "hello")
        made = await runtime.api.rebuild_call("k", reply.turn_id, 0)
        turn = await runtime.api.past_turn("k", reply.turn_id)
    assert secret.encode() in model.requests[0].body
    assert (made.verdict, turn.calls[0].redacted) == ("different", True)
    assert "secret was removed" in made.reasons[0]
    for each in path.parent.iterdir():
        if each.is_file():
            content = each.read_bytes()
            assert secret.encode() not in content, each
            assert KEY.encode() not in content, each


async def test_delete_leaves_nothing(start, path):
    async with (
        open_model() as model,
        chat_agents(endpoint(model), system=SYSTEM, facts=lambda turn: turn.session_key) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        kept = await runtime.ask("kept", "hello")
        gone = await runtime.ask("gone", "hello")
        await runtime.admin.delete(gone.session_id)
        assert await runtime.api.past_turns("gone") == []
        assert (await runtime.api.rebuild_call("kept", kept.turn_id, 0)).verdict == "same"
        await runtime.admin.delete(kept.session_id)
    with SessionStore(path) as store:
        for table in ("turns", "contents", "session_contents"):
            rows = store.snapshot(lambda tx, table=table: tx.all(f"SELECT * FROM {table}"))
            assert rows == [], table
