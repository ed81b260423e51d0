"""Agents, compressors and titlers with a model over real sockets, in a real runtime."""

from __future__ import annotations

import threading

import attrs
import pytest
import trio

from hermes import CompressionConfig, Config, Message, Source
from hermes.agents import Budgets, Endpoint, Price, Retries, Secret, Spending, chat_agents, tool
from hermes.agents.budgets import BudgetSpent
from hermes.agents.compressor import SUMMARY_PROMPT
from hermes.agents.tools.toolbox import MAX_THREADS
from hermes.errors import CompressorFailed
from hermes.events import TextDelta, TitleChanged
from hermes.messages import CostTotals, ToolCall
from hermes.protocols import SummaryRequest, TitleRequest
from hermes.store import SessionStore
from hermes.testing import Drip, ModelAnswer, Refuse, inspect, open_model

KEY = "sk-test-0123456789abcdef"
PRICES = {"m": Price(input=1_000_000.0, output=0.0)}
"""Each input token costs 1."""
SECONDS = 60


@pytest.fixture
def workers():
    """The store runs in threads, as in production."""
    return "threads"


def endpoint(model, protocol="openai", **options):
    url = model.openai_url if protocol == "openai" else model.anthropic_url
    return Endpoint(base_url=url, model="m", name="the model", key=Secret(KEY), **options)


def brief(request):
    """A model with short answers."""
    return "## Goal\nto talk" if "<conversation>" in request.text else "fine"


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(params=["openai", "anthropic"])
def protocol(request):
    return request.param


async def test_a_model_answers_with_the_help_of_tools(start, protocol):
    script = [
        ModelAnswer("let me see", calls=[ToolCall("c1", "add", '{"a": 2, "b": 3}')]),
        "it is 5",
    ]
    async with (
        open_model(script) as model,
        chat_agents(endpoint(model, protocol), protocol=protocol, tools=[add]) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        reply = await runtime.ask("k", "what is 2 + 3?")
        rows = await runtime.conversation("k").history()
        again = await runtime.ask("k", "and now?")
    assert (reply.text, reply.status, len(reply.usage)) == ("it is 5", "complete", 2)
    assert [row.role for row in rows] == ["user", "assistant", "tool", "assistant"]
    assert rows[2].content == "5"
    assert again.build_reason is None


async def test_a_conversation_may_have_a_model_of_its_own(start, protocol):
    async with (
        open_model() as model,
        chat_agents(endpoint(model, protocol), protocol=protocol) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        await runtime.ask("k", "hello")
        await runtime.conversation("k").configure(model="large")
        reply = await runtime.ask("k", "hello")
        await runtime.ask("other", "hello")
    assert reply.build_reason == "signature"
    assert [request.json["model"] for request in model.requests] == ["m", "large", "m"]


async def test_earlier_prompts_are_read_from_the_cache(start, protocol):
    system = "You are kind. " * 500
    async with (
        open_model() as model,
        chat_agents(endpoint(model, protocol), protocol=protocol, system=system) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        replies = [await runtime.ask("k", f"hello {n} " + "word " * 200) for n in range(4)]
        usage = await runtime.ask("k", "/usage")
    cached = [reply.usage[-1].cache_read_tokens for reply in replies]
    assert cached[0] == 0
    assert cached[1:] == sorted(set(cached[1:]))
    assert cached[1] >= 1024
    assert f"(and {sum(cached)} from the cache)" in usage.text


async def test_all_conversations_share_the_threads_of_the_tools(start):
    """Otherwise functions that hang would take 20 threads in each conversation."""
    running, release = trio.Semaphore(0), threading.Event()

    @tool
    def hang(number: int) -> None:
        """Wait."""
        trio.from_thread.run_sync(running.release)
        release.wait(SECONDS)

    @tool(timeout=1.0)
    def look() -> str:
        """Look."""
        return "the sea"

    calls = [ToolCall(f"c{n}", "hang", f'{{"number": {n}}}') for n in range(MAX_THREADS)]

    def answer(request):
        last = request.json["messages"][-1]
        if last["role"] == "tool":
            return last["content"]
        return ModelAnswer(calls=calls if last["content"] == "hang" else [ToolCall("c", "look")])

    async with (
        open_model(answer) as model,
        chat_agents(endpoint(model), tools=[hang, look]) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(runtime.ask, "one", "hang")
        for _ in range(MAX_THREADS):
            await running.acquire()
        meanwhile = await runtime.ask("another", "look")
        release.set()
        afterwards = await runtime.ask("another", "look")
    assert "timed out" in meanwhile.text
    assert afterwards.text == "the sea"


async def test_current_facts_come_last_and_are_not_stored(start):
    async with (
        open_model(brief) as model,
        chat_agents(endpoint(model), facts=lambda turn: f"It is turn {turn.turn_id}.") as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        await runtime.ask("k", "hello")
        await runtime.ask("k", "again")
        rows = await runtime.conversation("k").history()
        shown = [request.json["messages"] for request in model.requests]
    assert shown[0][-1]["content"] == "It is turn 1."
    assert shown[1][: len(shown[0]) - 1] == shown[0][:-1]
    assert shown[1][-1]["content"] == "It is turn 2."
    assert not [row for row in rows if "It is turn" in row.content]


# Costs


def spending(**budgets):
    return Spending(PRICES, Budgets(**budgets))


@pytest.mark.parametrize(
    ("budget", "word"),
    [("session", "conversation"), ("principal", "your budget"), ("day", "daily")],
)
async def test_a_budget_that_is_used_up_refuses_the_next_call_visibly(start, budget, word):
    source = Source("telegram", chat_id="c", user_id="u")
    async with (
        open_model() as model,
        chat_agents(endpoint(model), spending=spending(**{budget: 5.0})) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        first = await runtime.ask("k", "a long enough question " * 5, source=source)
        second = await runtime.ask("k", "another", source=source)
        elsewhere = await runtime.ask("other", "hi", source=Source("telegram", user_id="v"))
    assert first.status == "complete"
    assert second.status == "failed"
    assert word in second.text
    assert model.answered == (1 if budget == "day" else 2)
    assert elsewhere.status == ("failed" if budget == "day" else "complete")


async def test_a_budget_is_checked_before_each_call_of_a_turn_too(start):
    script = [ModelAnswer(calls=[ToolCall("c1", "add", '{"a": 2, "b": 3}')]), "never said"]
    async with (
        open_model(script) as model,
        chat_agents(endpoint(model), tools=[add], spending=spending(session=5.0)) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        reply = await runtime.ask("k", "what is 2 + 3?")
        kept = [row.role for row in await runtime.conversation("k").history()]
    assert reply.status == "failed"
    assert reply.text.startswith("The request was not sent: this conversation has used up its")
    assert "/retry" not in reply.text
    assert kept == ["user", "assistant", "tool"]
    assert model.answered == 1


async def test_a_daily_budget_is_reset_the_next_day(start, world):
    async with (
        open_model() as model,
        chat_agents(endpoint(model), spending=spending(day=5.0)) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        await runtime.ask("k", "a long enough question " * 5)
        assert (await runtime.ask("k", "another")).status == "failed"
        world.pass_time(86400)
        assert (await runtime.ask("k", "another")).status == "complete"


async def test_every_call_is_recorded_with_its_purpose(start, path):
    config = Config(compression=CompressionConfig(window=1200, max_output=0, protect_first=0))
    async with (
        open_model(brief) as model,
        chat_agents(endpoint(model), spending=Spending(PRICES)) as agents,
        start(
            build_agent=agents.build, agent_spec=agents.agent_spec, compressor=agents.compressor(),
            config=config,
        ) as runtime,
    ):  # fmt: skip
        for number in range(8):
            await runtime.ask("k", f"question {number} " + "word " * 60)
        outcome = await runtime.conversation("k").compress()
        calls = []
        with SessionStore(path) as store:
            for session_id in store.get_compression_lineage(store.get_route("k").session_id):
                calls += store.get_usage(session_id)
    assert outcome.changed
    assert [call.purpose for call in calls].count("summary") == 1
    assert [call.purpose for call in calls].count("turn") == 8
    assert all(call.cost is not None for call in calls)


async def test_a_summary_that_cannot_be_used_is_recorded_too(start, path):
    def answer(request):
        return "a long record " * 500 if "<conversation>" in request.text else "fine"

    config = Config(compression=CompressionConfig(protect_first=0))
    async with (
        open_model(answer) as model,
        chat_agents(endpoint(model), spending=Spending(PRICES)) as agents,
        start(
            build_agent=agents.build, agent_spec=agents.agent_spec, compressor=agents.compressor(),
            config=config,
        ) as runtime,
    ):  # fmt: skip
        for number in range(4):
            reply = await runtime.ask("k", f"question {number}")
        outcome = await runtime.conversation("k").compress(keep_exchanges=1)
    assert not outcome.changed
    with SessionStore(path) as store:
        calls = store.get_usage(reply.session_id)
    assert [call.purpose for call in calls] == ["turn"] * 4 + ["summary"]
    assert calls[-1].cost > 0


async def test_calls_that_start_together_cannot_each_use_the_same_budget(start):
    async with (
        open_model(lambda _: "well", [Drip(0.2)] * 8) as model,
        chat_agents(endpoint(model), spending=spending(day=5.0)) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        replies = []

        async def ask(number):
            replies.append(await runtime.ask(f"k{number}", "a long enough question " * 5))

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(ask, number)
    assert sorted(reply.status for reply in replies) == ["complete"] + ["failed"] * 7
    assert model.answered == 1


async def test_the_costs_of_a_running_turn_count_for_all_others(start):
    begun = trio.Event()

    @tool
    async def wait() -> None:
        """Wait forever."""
        begun.set()
        await trio.sleep_forever()

    script = [ModelAnswer(calls=[ToolCall("c1", "wait", "{}")]), "never said"]
    async with (
        open_model(script) as model,
        chat_agents(endpoint(model), tools=[wait], spending=spending(day=5.0)) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.ask, "k", "a long enough question")
            with trio.fail_after(SECONDS):
                await begun.wait()
                other = await runtime.ask("other", "hello")
            await runtime.conversation("k").interrupt()
    assert (other.status, model.answered) == ("failed", 1)
    assert "daily budget" in other.text


async def test_an_interrupted_answer_is_recorded_with_the_tokens_of_its_prompt(start):
    async with (
        open_model(["a long answer, word by word"], [Drip(0.3)]) as model,
        chat_agents(endpoint(model), spending=Spending(PRICES)) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        async with runtime.stream("k", "hello there", interrupt_on_exit=True) as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    break
        with trio.fail_after(SECONDS):
            await runtime.ask("k", "/status")
            usage = await runtime.ask("k", "/usage")
            while usage.text.startswith("0"):
                usage = await runtime.ask("k", "/usage")
    assert usage.text.startswith("1 call,")
    assert "cost " in usage.text


async def test_the_calls_of_an_interrupted_turn_are_recorded(start):
    begun = trio.Event()

    @tool
    async def wait() -> None:
        """Wait forever."""
        begun.set()
        await trio.sleep_forever()

    script = [ModelAnswer(calls=[ToolCall("c1", "wait", "{}")])]
    async with (
        open_model(script) as model,
        chat_agents(endpoint(model), tools=[wait], spending=Spending(PRICES)) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        replies = []

        async def ask():
            replies.append(await runtime.ask("k", "hello"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.fail_after(SECONDS):
                await begun.wait()
            await runtime.conversation("k").interrupt()
        usage = await runtime.ask("k", "/usage")
    assert [(reply.status, len(reply.usage)) for reply in replies] == [("interrupted", 1)]
    assert usage.text.startswith("1 call,")


# Summaries and titles


def request(messages, **options):
    options = {"previous": None, "focus": None, "max_tokens": 500, **options}
    return SummaryRequest(session_id="s", messages=messages, **options)


async def test_the_model_gets_the_earlier_summary_and_the_focus():
    script = [f"## Goal\nto see the sea; the key is {KEY}"]
    async with (
        open_model(script) as model,
        chat_agents(endpoint(model), spending=Spending(PRICES)) as agents,
    ):
        messages = [Message("user", "I want to see the sea"), Message("assistant", "go south")]
        charged = []
        summary = await agents.compressor().summarize(
            request(messages, previous="they met", focus="the sea", charge=charged.append)
        )
        [asked] = model.requests
    assert "to see the sea" in summary.text
    assert KEY not in summary.text
    assert [call.purpose for call in charged] == ["summary"]
    assert charged[0].cost > 0
    system, material = (message["content"] for message in asked.json["messages"])
    assert system == SUMMARY_PROMPT
    for part in ("they met", "I want to see the sea", "go south", "what concerns: the sea"):
        assert part in material


async def test_messages_that_do_not_fit_are_summarized_in_several_calls():
    count = 0

    def answer(_):
        nonlocal count
        count += 1
        return f"record {count}"

    async with open_model(answer) as model, chat_agents(endpoint(model)) as agents:
        messages = [Message("user", f"{n} " + "word " * 400) for n in range(20)]
        summary = await agents.compressor(window=6000).summarize(request(messages))
        materials = [asked.json["messages"][-1]["content"] for asked in model.requests]
    assert len(materials) > 1
    assert summary.text == f"record {len(materials)}"
    assert [f"record {n}" in text for n, text in enumerate(materials)] == [False] + [True] * (
        len(materials) - 1
    )
    for number in range(20):
        assert sum(f"user: {number} word" in text for text in materials) == 1


@pytest.mark.parametrize("word", ["word ", "言葉"])
async def test_a_message_that_does_not_fit_by_itself_is_truncated(word):
    messages = [Message("user", f"first {word * 9000} last"), Message("assistant", "oh")]
    window = 6000
    async with (
        open_model(["a record"] * 2, window=window) as model,
        chat_agents(endpoint(model)) as agents,
    ):
        summary = await agents.compressor(window=window).summarize(request(messages))
        asked = model.requests[0].json["messages"][-1]["content"]
    assert summary.text == "a record"
    assert "user: first" in asked
    assert " last" in asked


async def test_a_truncated_summary_is_a_failure():
    """Its last sections would be missing."""
    script = [ModelAnswer("## Goal\nto see the", finish="length")]
    async with open_model(script) as model, chat_agents(endpoint(model)) as agents:
        with pytest.raises(CompressorFailed, match="raise max_tokens") as failed:
            await agents.compressor().summarize(request([Message("user", "hello")]))
    assert failed.value.lasting


async def test_a_long_retry_after_is_left_to_the_cooldown():
    faults = [Refuse("rate_limit", retry_after=300)]
    async with open_model(faults=faults) as model, chat_agents(endpoint(model)) as agents:
        with trio.fail_after(20), pytest.raises(CompressorFailed) as failed:
            await agents.compressor().summarize(request([Message("user", "hello")]))
    assert failed.value.retry_after == 300


@pytest.mark.parametrize(
    ("why", "lasting"), [("bad_key", True), ("no_quota", True), ("server_error", False)]
)
async def test_a_failed_summary_starts_a_cooldown(start, path, world, why, lasting):
    config = Config(compression=CompressionConfig(window=1200, max_output=0, protect_first=0))
    faults = [None] * 8 + [Refuse(why)] * 3
    async with (
        open_model(faults=faults) as model,
        chat_agents(endpoint(model)) as agents,
    ):
        compressor = agents.compressor()
        quick = attrs.evolve(compressor, retries=Retries(max_attempts=3, first_delay=0.01))
        async with start(
            build_agent=agents.build, agent_spec=agents.agent_spec, compressor=quick, config=config
        ) as runtime:
            for number in range(8):
                await runtime.ask("k", f"question {number} " + "word " * 5)
            outcome = await runtime.conversation("k").compress()
            note = await inspect(runtime).store.get_meta(
                f"compression:{(await runtime.conversation('k').status()).session_id}"
            )
    assert outcome.failed
    assert KEY not in outcome.detail
    pauses = CompressionConfig().cooldowns
    wait = 900.0 if lasting else 60.0
    assert wait in pauses
    assert f'"not_before":{world.now + wait}' in note


async def test_budgets_apply_to_summaries_and_titles_too(start):
    async def spent():
        return CostTotals(session=9.0)

    async with (
        open_model(["never asked"]) as model,
        chat_agents(endpoint(model), spending=spending(session=5.0)) as agents,
    ):
        messages = [Message("user", "hello")]
        with pytest.raises(CompressorFailed, match="used up its budget") as refused:
            await agents.compressor().summarize(request(messages, spent=spent))
        with pytest.raises(BudgetSpent, match="used up its budget"):
            await agents.titler().title(
                TitleRequest(session_id="s", messages=messages, spent=spent)
            )
    assert refused.value.lasting
    assert model.answered == 0


async def test_a_model_titles_the_conversation_and_the_call_is_recorded(start, path):
    def answer(request):
        return "Of the sea" if "Write its title." in request.text else "the sea is wide"

    async with (
        open_model(answer) as model,
        chat_agents(endpoint(model), spending=Spending(PRICES)) as agents,
        start(
            build_agent=agents.build, agent_spec=agents.agent_spec, titler=agents.titler()
        ) as runtime,
    ):
        with runtime.subscribe("k") as heard, trio.fail_after(SECONDS):
            reply = await runtime.ask("k", f"tell me of the sea, by {KEY}")
            async for envelope in heard:
                if isinstance(envelope.event, TitleChanged):
                    break
        status = await runtime.conversation("k").status()
    assert status.title == "Of the sea"
    with SessionStore(path) as store:
        calls = store.get_usage(reply.session_id)
    assert [call.purpose for call in calls] == ["turn", "title"]
    assert all(call.cost for call in calls)
