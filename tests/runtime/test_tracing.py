"""OpenTelemetry: the spans of turns, from the events of a runtime, without content by default."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
import trio
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hermes import TurnResult, open_runtime
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.events import AssistantMessage, TextDelta, ToolFinished, ToolStarted
from hermes.messages import Message, Source, ToolCall, Usage
from hermes.telemetry.otel import OtelConfig, open_tracing
from hermes.telemetry.otel.spans import read_traceparent

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
KEY = "agent:main:telegram:dm:42"


async def model(turn):
    """Answers as a model with a tool does."""
    call = ToolCall("c1", "look", '{"where": "secret"}')
    turn.emit(AssistantMessage(Message("assistant", None, tool_calls=(call,))))
    turn.emit(ToolStarted(call))
    turn.emit(ToolFinished("c1", "seen secret", failed=True))
    turn.emit(TextDelta("done"))
    usage = Usage(
        model="m1", provider="p", input_tokens=10, output_tokens=3, cache_read_tokens=7, cost=0.5
    )
    for _ in range(2):
        turn.charge(usage)
    return TurnResult(text="done secret")


def by_name(exporter):
    spans = {}
    for span in exporter.get_finished_spans():
        spans.setdefault(span.name, []).append(span)
    return spans


async def traced(path, config=None, agent=model, **options):
    """Answer a message; returns the spans by name."""
    exporter = InMemorySpanExporter()
    redact = lambda text: text.replace("secret", "***")  # noqa: E731
    with open_tracing(config or OtelConfig(), redact=redact, exporter=exporter) as tracing:
        async with open_runtime(path, agent=agent) as runtime:
            await tracing.attach(runtime)
            await runtime.ask(KEY, "hello secret", source=Source(platform="telegram"), **options)
    assert tracing.dropped == 0
    return by_name(exporter)


async def test_a_turn_has_the_spans_of_its_steps(path):
    spans = await traced(path)
    assert {name: len(found) for name, found in spans.items()} == {
        "hermes.turn": 1, "invoke_agent hermes": 1, "chat m1": 2, "execute_tool look": 1,
        "hermes.commit": 1,
    }  # fmt: skip
    [turn], [agent], [commit] = (
        spans[name] for name in ("hermes.turn", "invoke_agent hermes", "hermes.commit")
    )
    [tool], [first, last] = spans["execute_tool look"], spans["chat m1"]
    assert turn.parent is None
    assert {span.parent.span_id for span in (agent, commit)} == {turn.context.span_id}
    assert {span.parent.span_id for span in (first, last, tool)} == {agent.context.span_id}
    assert len({span.context.trace_id for found in spans.values() for span in found}) == 1
    assert turn.start_time <= first.start_time <= first.end_time <= tool.start_time
    assert tool.end_time <= last.start_time <= last.end_time <= turn.end_time
    assert last.attributes["gen_ai.response.time_to_first_chunk"] >= 0
    assert turn.resource.attributes["service.name"] == "hermes"


async def test_the_attributes_are_those_that_back_ends_read(path):
    spans = await traced(path)
    [turn], [tool] = spans["hermes.turn"], spans["execute_tool look"]
    [chat, _] = spans["chat m1"]
    for found in spans.values():
        for span in found:
            assert span.attributes["session.id"] == turn.attributes["session.id"]
            assert len(span.attributes["user.id"]) == 32  # a hash
    assert {
        name: value for name, value in chat.attributes.items() if name.startswith(("gen_ai", "llm"))
    } == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "p",
        "gen_ai.request.model": "m1", "gen_ai.usage.input_tokens": 17,
        "gen_ai.usage.output_tokens": 3, "gen_ai.usage.cache_read.input_tokens": 7,
        "gen_ai.usage.cache_creation.input_tokens": 0, "llm.token_count.prompt": 17,
        "llm.token_count.completion": 3, "llm.token_count.prompt_details.cache_read": 7,
        "llm.token_count.prompt_details.cache_write": 0, "llm.cost.total": 0.5,
    }  # fmt: skip
    kinds = {name: found[0].attributes["openinference.span.kind"] for name, found in spans.items()}
    assert kinds == {
        "hermes.turn": "CHAIN", "invoke_agent hermes": "AGENT", "chat m1": "LLM",
        "execute_tool look": "TOOL", "hermes.commit": "CHAIN",
    }  # fmt: skip
    assert tool.attributes["error.type"] == "tool_error"
    assert not tool.status.is_ok
    assert turn.attributes["hermes.attempt"] == 1
    assert turn.attributes["hermes.build_reason"] == "cold"
    assert turn.attributes["hermes.queued_seconds"] >= 0


async def test_there_is_no_content_unless_it_is_asked_for(path):
    spans = await traced(path)
    said = json.dumps([dict(span.attributes) for found in spans.values() for span in found])
    assert not any(
        word in said for word in ("hello", "done", "seen", "where", "telegram:dm", ":42")
    )


async def test_content_is_redacted(path):
    spans = await traced(path, OtelConfig(content=True, ids="plain", names="latest"))
    [turn], [tool] = spans["hermes.turn"], spans["execute_tool look"]
    assert json.loads(turn.attributes["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "hello ***"}]}
    ]
    assert "done ***" in turn.attributes["gen_ai.output.messages"]
    assert tool.attributes["gen_ai.tool.call.arguments"] == '{"where": "***"}'
    assert tool.attributes["gen_ai.tool.call.result"] == "seen ***"
    assert turn.attributes["hermes.session_key"] == KEY
    assert turn.attributes["user.id"] == "telegram:42"
    assert "gen_ai.usage.cache_write.input_tokens" in spans["chat m1"][0].attributes


async def test_the_trace_of_a_request_is_linked(path):
    spans = await traced(path, metadata={"traceparent": PARENT})
    [turn] = spans["hermes.turn"]
    [link] = turn.links
    assert f"{link.context.trace_id:032x}" == TRACE
    assert link.context.is_remote
    assert turn.context.trace_id != link.context.trace_id


async def test_the_span_of_a_commit_is_as_long_as_the_commit(start_proxy, autojump_clock):
    """Of its own turn, while others commit."""

    async def commit(real, turn):
        await trio.sleep({"slow": 5.0, "fast": 1.0}[turn.session_key])
        return await real(turn)

    exporter = InMemorySpanExporter()
    with open_tracing(exporter=exporter) as tracing:
        async with start_proxy(commit_turn=commit) as runtime, trio.open_nursery() as nursery:
            await tracing.attach(runtime)
            for key in ("slow", "fast"):
                nursery.start_soon(runtime.ask, key, "hello")
    lengths = [span.end_time - span.start_time for span in by_name(exporter)["hermes.commit"]]
    assert sorted(length / 1e9 for length in lengths) == pytest.approx([1.0, 5.0])


@pytest.mark.parametrize(
    "value", [None, 1, "", "00-x-y-01", f"00-{'0' * 32}-b7ad6b7169203331-01", PARENT + "\n"]
)
def test_a_traceparent_that_is_not_valid_is_ignored(value):
    assert read_traceparent(value) is None


async def test_a_failed_turn_is_an_error(path):
    async def fails(turn):
        raise RuntimeError("secret")

    [turn] = (await traced(path, agent=fails))["hermes.turn"]
    assert not turn.status.is_ok
    assert turn.attributes["error.type"] == "RuntimeError"
    assert turn.status.description is None


def test_other_hosts_are_traced(path, tmp_path):
    exporter = InMemorySpanExporter()
    with open_tracing(exporter=exporter) as tracing:
        with start_runtime(path, agent=model) as runtime:
            runtime.run_on_trio(tracing.attach)
            runtime.ask(KEY, "hello")

        async def main():
            async with open_runtime_asyncio(tmp_path / "other.db", agent=model) as other:
                await other.run_on_trio(tracing.attach)
                await other.ask(KEY, "hello")

        asyncio.run(main())
    assert len(by_name(exporter)["hermes.turn"]) == 2


class Stuck(SpanExporter):
    """An exporter whose collector does not answer."""

    def __init__(self):
        self.entered = threading.Event()
        self.leave = threading.Event()

    def export(self, spans):
        self.entered.set()
        self.leave.wait(10)
        return SpanExportResult.FAILURE


async def test_a_collector_that_does_not_answer_delays_nothing(path, caplog):
    exporter = Stuck()
    with open_tracing(OtelConfig(max_queue=12), exporter=exporter) as tracing:
        async with open_runtime(path, agent=model) as runtime:
            await tracing.attach(runtime)
            await runtime.ask(KEY, "hello")
            await trio.to_thread.run_sync(exporter.entered.wait, 10)  # with six spans of a turn
            for _ in range(9):
                await runtime.ask(KEY, "hello")
        assert tracing.dropped == 54 - 12  # twelve wait
        exporter.leave.set()
    assert tracing.dropped == 60
    assert caplog.text.count("could not be sent") == 1


async def test_an_exporter_that_raises_is_contained(path):
    class Broken(SpanExporter):
        def export(self, spans):
            raise ValueError("broken")

    with open_tracing(exporter=Broken()) as tracing:
        async with open_runtime(path, agent=model) as runtime:
            await tracing.attach(runtime)
            await runtime.ask(KEY, "hello")
    assert tracing.dropped == 6
