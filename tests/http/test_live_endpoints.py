"""The live view of operators: a stream of what changes, and details on demand."""

from __future__ import annotations

import itertools
from urllib.parse import quote

import apsw
import msgspec
import pytest
import trio

from hermes import AccessPolicy, Config, Inbound, PlatformRules, Source
from hermes.adapters.http.api.live.feed import LiveFeed
from hermes.adapters.http.api.live.routes import ENDPOINTS
from hermes.config import Budgets
from hermes.errors import MessageRefused, Unsendable
from hermes.messages import AgentSpec, TurnResult, Usage
from hermes.telemetry.collecting import collecting
from hermes.testing import MemoryAdapter, inspect
from tests.support.compression import (
    FULL,
    SMALL,
    SUMMARY,
    Gate,
    RecordingAgent,
    ScriptedCompressor,
    during_compression,
    question,
    talk,
)
from tests.support.held_turns import HeldAgent
from tests.support.http import http_server, new_token
from tests.support.http_models import server_with
from tests.support.live_view import hold_conversations, live_view, operator
from tests.support.runtime import SECONDS

KEY = "a:1"
NUMBERS = itertools.count()
CHAT = Source("memory", chat_id="c")


def at(what, key=KEY):
    return f"/api/live/{what}/{quote(key, safe='')}"


async def read(server, place, **query):
    client = server.http(await operator(server, f"reader{next(NUMBERS)}"))
    response = await client.get(place, params=query)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each.path)
async def test_only_operators_may_look(path, endpoint):
    place = (
        endpoint.path.replace("{key}", "k").replace("{session_id}", "s").replace("{turn_id}", "1")
    )
    async with http_server(path) as server:
        assert (await server.http().get(place)).status_code == 403
        metrics = await new_token(server.runtime, "prometheus", roles=("metrics",))
        assert (await server.http(metrics).get(place)).status_code == 403
        assert (await server.http("wrong").get(place)).status_code == 401


async def test_a_turn_is_seen_from_its_start_to_its_end(path):
    held = HeldAgent()
    config = Config(merge_messages=False)
    async with http_server(path, held, runtime_config=config) as server, live_view(server) as live:
        assert live.kinds == ["reset"]
        assert live.state["actors"] == {}
        runtime = server.runtime
        first = await runtime.submit(Inbound(KEY, "1", "one"))
        await held.wait_started()
        await runtime.submit(Inbound(KEY, "2", "two"))
        await live.until(lambda state: state["actors"].get(KEY, {}).get("mailbox") == 1)
        seen = live.state["actors"][KEY]
        assert (seen["turn_id"], seen["agent"], seen["last_build"]) == (1, True, "cold")
        assert first.accepted_at <= seen["turn_started"] <= live.state["at"]
        assert live.state["store"]["inbox_open"] == 2
        held.release(0, 1)
        await live.until(lambda state: state["actors"][KEY]["turn_id"] is None)
        await live.until(lambda state: state["runtime"]["turns"] == {"complete": 2})
        await live.until(lambda state: state["store"]["inbox_open"] == 0)
        assert live.state["runtime"]["commits"]["count"] == 2
        writer = live.state["store"]["writer"]
        assert writer["commits"] >= writer["flushes"] >= 2
        assert live.state["store"]["wal_limit"] > live.state["store"]["wal_bytes"] > 0
        assert "reset" not in live.kinds[1:]


async def test_an_actor_that_has_ended_is_gone(path):
    config = Config(idle_timeout=0.1)
    async with http_server(path, runtime_config=config) as server, live_view(server) as live:
        await server.runtime.ask(KEY, "hello")
        await live.until(lambda state: not state["actors"] and state["runtime"]["turns"])


async def test_a_listener_that_comes_back_gets_what_it_has_missed(path):
    async with http_server(path) as server:
        secret = await operator(server)
        async with live_view(server, secret=secret) as other:
            async with live_view(server, secret=secret) as live:
                last_id = live.events.last_id
            await server.runtime.ask(KEY, "hello")
            await other.until(lambda state: KEY in state["actors"])
            async with live_view(server, secret=secret, last_id=last_id) as again:
                assert again.kinds == ["changed"]
        async with live_view(server, secret=secret, last_id="x.live.1") as again:
            assert again.kinds == ["reset"]
            assert KEY in again.state["actors"]


async def hungry(turn):
    """Use a cache more with each call."""
    number = int(turn.text)
    turn.charge(Usage(model="m", input_tokens=10 - number, cache_read_tokens=number, cost=0.5))
    return "ok"


class Feed:
    """A feed that is driven by hand, and what its store and its listeners do."""

    def __init__(self, runtime, nursery):
        self.runtime = runtime
        self.feed = LiveFeed(runtime, nursery, "p", lambda: None)
        self.feed.interval = 3600.0
        self.statements = []
        self.browser = inspect(runtime).store._connections.browser.db

    async def tick(self):
        """Compare once. Returns the SQL statements, and the bytes that were sent."""
        before = self.feed.bytes
        self.statements.clear()
        self.browser.trace_v2(apsw.SQLITE_TRACE_STMT, self.statements.append)
        await self.feed._tick()
        self.browser.trace_v2(0, None)
        return len(self.statements), self.feed.bytes - before


async def test_a_thousand_actors_cost_no_more_than_ten(path, tmp_path):
    """Counted: statements of a comparison, and actors in what it sends."""
    counts = []
    for number, name in ((10, "few"), (1000, "many")):
        config = Config(max_agents=2000)
        async with http_server(tmp_path / name, runtime_config=config) as server:
            runtime = server.runtime
            await hold_conversations(runtime, number)
            async with trio.open_nursery() as nursery:
                feed = Feed(runtime, nursery)
                with feed.feed.listening():
                    snapshot = await feed.feed.snapshot()
                    assert len(snapshot.actors) == number
                    await runtime.ask("live:3", "again")
                    statements, sent = await feed.tick()
                    [entry] = feed.feed.after(feed.feed.numbers.last - 1)
                    data = msgspec.json.decode(entry.frame.partition(b"data: ")[2])
                    assert [each["session_key"] for each in data["actors"]] == ["live:3"]
                    assert sent == len(entry.frame)
                    counts.append(statements)
                nursery.cancel_scope.cancel()
    few, many = counts
    assert few == many > 0


async def test_all_listeners_share_one_comparison_and_without_any_there_is_none(path):
    async with http_server(path) as server:
        async with trio.open_nursery() as nursery:
            feed = Feed(server.runtime, nursery).feed
            with feed.listening() as one, feed.listening() as two:
                first, second = await feed.snapshot(), await feed.snapshot()
                assert first.id == second.id
                assert feed.ticks == 1
                await server.runtime.ask(KEY, "hello")
                await feed._tick()
                assert one.woken.is_set()
                assert two.woken.is_set()
                assert len(feed.after(int(first.id.rpartition(".")[2]))) == 1
            feed.interval = 0.0
            nursery.cancel_scope.cancel()
        assert feed.ticks == 2
        assert feed.after(0) == []


async def test_a_second_without_changes_sends_nothing(path):
    async with http_server(path) as server, trio.open_nursery() as nursery:
        await server.runtime.ask(KEY, "hello")
        feed = Feed(server.runtime, nursery)
        with feed.feed.listening():
            await feed.feed.snapshot()
            with trio.fail_after(SECONDS):
                while (await feed.tick())[1]:  # what the last commit has caused, such as indexing
                    await trio.lowlevel.checkpoint()
            number = feed.feed.numbers.last
            await feed.tick()
            assert feed.feed.numbers.last == number
        nursery.cancel_scope.cancel()


# Delivery


@pytest.mark.parametrize("error", [MessageRefused("no"), OSError("lost")])
async def test_a_lane_shows_retries_and_unknown_outcomes(path, error):
    adapter, config = MemoryAdapter(errors=[error] * 9), Config(drain_timeout=0.1)
    async with (
        http_server(path, adapters=[adapter], runtime_config=config) as server,
        live_view(server) as live,
    ):
        await server.runtime.ask(KEY, "hello", source=CHAT)
        await live.until(lambda state: any(each["retried"] for each in state["lanes"].values()))
        [lane] = live.state["lanes"].values()
        unknown = isinstance(error, OSError)
        assert (lane["session_key"], lane["pending"] + lane["sending"]) == (KEY, 1)
        assert lane["unknown"] == unknown
        [row] = (await read(server, "/api/live/outbox", lane=lane["lane"]))["rows"]
        assert (row["preview"], row["unknown"]) == ("echo: hello", unknown)
        assert row["attempts"] >= lane["attempts"] >= 1
        assert (await read(server, "/api/live/outbox", lane="other"))["rows"] == []
        adapter.errors.clear()
        await live.until(lambda state: not state["lanes"])


async def test_a_reply_that_was_given_up_is_counted_and_listed(path):
    adapter = MemoryAdapter(errors=[Unsendable("blocked")])
    async with http_server(path, adapters=[adapter]) as server, live_view(server) as live:
        await server.runtime.ask(KEY, "hello", source=CHAT)
        await live.until(lambda state: state["store"]["dead"] == 1)
        [row] = (await read(server, "/api/live/outbox"))["rows"]
        assert (row["state"], row["note"]) == ("dead", "blocked")


# Lineage


async def test_the_lineage_has_compressions_and_branches(path):
    compressor = ScriptedCompressor()
    config = Config(compression=SMALL)
    async with http_server(
        path, RecordingAgent(), compressor=compressor, runtime_config=config
    ) as server:
        runtime = server.runtime
        await talk(runtime, FULL + 1, key=KEY)
        conversation = runtime.conversation(KEY)
        tip = (await conversation.status()).session_id
        await conversation.branch("other")
        found = await read(server, at("lineage"))
        root, compressed, branch = found["sessions"]
        assert (root["kind"], root["parent"], root["end_reason"]) == ("new", None, "compression")
        assert compressed["session_id"] == tip
        assert (compressed["kind"], compressed["parent"]) == ("compression", root["session_id"])
        assert (branch["kind"], branch["parent"]) == ("branch", tip)
        assert [each["current"] for each in found["sessions"]] == [False, False, True]
        assert branch["keys"] == [KEY]
        assert found["current"] == branch["session_id"]
        assert root["messages"] == 2 * FULL
        replaced = compressed["summary"]
        details = await read(server, at("summaries", tip))
        assert details["replaced"] == replaced
        assert SUMMARY in details["summary"]["text"]
        rows = details["rows"]
        assert len(rows) == replaced["count"]
        assert [rows[0]["id"], rows[-1]["id"]] == [replaced["first"], replaced["last"]]
        assert rows[0]["text"] == question(0)
        [asked] = compressor.requests
        assert len(asked.messages) == len(rows)
        client = server.http(await operator(server, "another"))
        assert (await client.get(at("summaries", root["session_id"]))).status_code == 404
        assert (await client.get(at("summaries", "unknown"))).status_code == 404


async def test_a_second_summary_replaces_the_first(path):
    config = Config(compression=SMALL)
    async with http_server(
        path, RecordingAgent(), compressor=ScriptedCompressor(), runtime_config=config
    ) as server:
        await talk(server.runtime, 2 * FULL + 2, key=KEY)
        sessions = (await read(server, at("lineage")))["sessions"]
        assert [each["kind"] for each in sessions] == ["new", "compression", "compression"]
        first, second = sessions[1]["summary"], sessions[2]["summary"]
        assert second["session_id"] == sessions[1]["session_id"]
        assert second["first"] == first["message"]
        rows = (await read(server, at("summaries", sessions[2]["session_id"])))["rows"]
        assert SUMMARY in rows[0]["text"]


async def test_an_unknown_conversation_has_no_lineage(path):
    async with http_server(path) as server:
        assert (await read(server, at("lineage", "unknown")))["sessions"] == []
        assert (await read(server, at("cache", "unknown")))["calls"] == []


# Caches


async def test_each_call_has_its_cached_share_and_a_rebuild_its_reason(path):
    async with http_server(path, hungry) as server:
        for number in (0, 4, 8):
            await server.runtime.ask(KEY, str(number))
        found = await read(server, at("cache"))
        calls = found["calls"]
        assert [(each["cache_read_tokens"], each["input_tokens"]) for each in calls] == [
            (8, 2), (4, 6), (0, 10),
        ]  # fmt: skip
        assert [each["build_reason"] for each in calls] == [None, None, "cold"]
        page = await read(server, at("cache"), limit=2, before=calls[0]["id"])
        assert page["calls"] == calls[1:]
        [listed] = (await read(server, "/api/live/cache"))["conversations"]
        assert (listed["session_key"], listed["cache_read_tokens"], listed["calls"]) == (KEY, 12, 3)


async def test_a_rebuild_names_the_first_byte_that_differs(path):
    prompts = ["You are kind. Today is Monday.", "You are kind. Today is Tuesday."]

    def describe(key, source):
        return AgentSpec(session_key=key, system_prompt=prompts[0], credential="secret")

    async def answer(turn):
        return TurnResult(text="ok")

    async with http_server(
        path, None, build_agent=lambda _: RecordingAgent(), agent_spec=describe
    ) as server:
        await server.runtime.ask(KEY, "one")
        prompts.pop(0)
        await server.runtime.ask(KEY, "two")
        [rebuild] = (await read(server, at("cache")))["rebuilds"]
        assert (rebuild["reason"], rebuild["compared"]) == ("signature", "descriptions")
        difference = rebuild["difference"]
        assert (difference["part"], difference["offset"]) == ("system prompt", 23)
        assert difference["before"] == "You are kind. Today is Monday."
        assert difference["after"] == "You are kind. Today is Tuesday."


async def test_a_foreign_write_says_that_the_bytes_are_not_known(path, sql):
    async with http_server(path) as server:
        session_id = (await server.runtime.ask(KEY, "one")).session_id
        await inspect(server.runtime).store.append_message(session_id, "user", "of another")
        await server.runtime.ask(KEY, "two")
        [rebuild] = (await read(server, at("cache")))["rebuilds"]
        assert (rebuild["reason"], rebuild["difference"]) == ("foreign-write", None)


async def test_prompts_are_compared_byte_by_byte_if_they_were_recorded(path):
    async with server_with(path, ["one", "two", "three"]) as (server, model):
        conversation = server.runtime.conversation(KEY)
        await conversation.ask("hello")
        await conversation.ask("again")
        same = await read(server, at("cache", KEY) + "/turns/2")
        assert (same["earlier_turn"], same["exact"], same["extended"]) == (1, True, True)
        await conversation.configure(model="n")
        await conversation.ask("more")
        found = await read(server, at("cache", KEY) + "/turns/3")
        assert (found["exact"], found["extended"]) == (True, False)
        difference = found["difference"]
        sent = [request.body for request in model.requests]
        assert difference["offset"] == sent[1].index(b'"m"') + 1
        shown = slice(difference["shown_from"], difference["offset"] + 60)
        assert difference["before"].encode() == sent[1][shown]
        assert difference["after"].encode() == sent[2][shown]
        first = await read(server, at("cache", KEY) + "/turns/1")
        assert (first["difference"], first["earlier_turn"]) == (None, None)
        other = await read(server, at("cache", KEY) + "/turns/x")
        assert other["reasons"] == ["no prompt of this turn was recorded"]


# Limits


async def test_a_compression_is_seen_as_a_lease(path):
    gate = Gate()
    config = Config(compression=SMALL)
    compressor = ScriptedCompressor(gate)
    async with (
        http_server(path, RecordingAgent(), compressor=compressor, runtime_config=config) as server,
        live_view(server) as live,
    ):
        runtime = server.runtime
        await talk(runtime, FULL, key=KEY)
        compress = runtime.conversation(KEY).compress
        async with during_compression(gate, compress):
            await live.until(lambda state: state["leases"])
            [lease] = live.state["leases"]
            assert lease["session_key"] == KEY
            assert lease["expires_at"] > live.state["at"] - 1
        await live.until(lambda state: not state["leases"])


async def test_costs_and_budgets_are_seen(path):
    async with http_server(path, hungry) as server:
        await server.runtime.ask(KEY, "1", source=Source("memory", user_id="ann"))
        collected = collecting(server.runtime)
        assert collected.host_status().budgets is None
        async with trio.open_nursery() as nursery:
            feed = LiveFeed(server.runtime, nursery, "p", lambda: Budgets(day=5.0))
            with feed.listening():
                costs = (await feed.snapshot()).costs
            nursery.cancel_scope.cancel()
        assert (costs.today.total, costs.budgets.day) == (0.5, 5.0)
        [payer], [session] = costs.today.payers, costs.today.sessions
        assert (payer.payer, payer.cost) == ("memory/ann", 0.5)
        assert (session.session_key, session.cost) == (KEY, 0.5)


async def test_rate_limits_and_quarantines_are_seen(path):
    access = AccessPolicy(rules={"http": PlatformRules(pairing=False)})
    async with http_server(path, access=access) as server, live_view(server) as live:
        sent = await server.http().post(
            "/api/conversations/name:x/messages", json={"text": "hello"}
        )
        assert sent.status_code == 200
        await live.until(lambda state: state["runtime"]["admission"]["senders"] == 1)
        [level] = live.state["runtime"]["admission"]["lowest"]
        assert level["left"] < live.state["runtime"]["admission"]["burst"]
        inspect(server.runtime).supervisor.quarantined.add(KEY)
        await live.until(lambda state: state["runtime"]["quarantined"] == [KEY])
