"""Numbers of tokens that a provider cannot mean: the answer is kept, and they count as unknown."""

from __future__ import annotations

import json

import pytest
import trio

from hermes.agents import Endpoint, chat_agents
from hermes.testing.loopback import Response, serve_http
from tests.support.runtime import SECONDS

HUGE, NEGATIVE = 2**70, -1_000_000


def openai(usage):
    yield {"choices": [{"delta": {"content": "hi"}}]}
    yield {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage}


def anthropic(usage):
    yield {"type": "message_start", "message": {"usage": usage}}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
    yield {"type": "message_stop"}


@pytest.mark.parametrize(
    ("events", "usage", "counted"),
    [
        (openai, {"prompt_tokens": 10, "completion_tokens": NEGATIVE}, (10, 0, 0)),
        (openai, {"prompt_tokens": HUGE, "completion_tokens": 1}, (0, 0, 1)),
        (
            openai,
            {
                "prompt_tokens": 10,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": NEGATIVE, "cache_write_tokens": -3},
                "completion_tokens_details": {"reasoning_tokens": -1},
            },
            (10, 0, 1),
        ),
        (anthropic, {"input_tokens": NEGATIVE, "output_tokens": 1}, (0, 0, 1)),
        (anthropic, {"input_tokens": 1, "output_tokens": HUGE}, (1, 0, 0)),
        (
            anthropic,
            {"input_tokens": 1, "output_tokens": 1, "cache_read_input_tokens": NEGATIVE,
             "cache_creation_input_tokens": -1},
            (1, 0, 1),
        ),
    ],
)  # fmt: skip
async def test_impossible_numbers_of_tokens_count_as_unknown(
    start, caplog, request, events, usage, counted
):
    lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events(usage)]

    async def respond(_):
        await trio.lowlevel.checkpoint()
        return Response(headers=[("content-type", "text/event-stream")], chunks=lines)

    name = request.node.name  # each endpoint is warned of once
    with trio.fail_after(SECONDS):
        async with serve_http(respond) as port:
            endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}", model="m", name=name)
            async with (
                chat_agents(endpoint, protocol=events.__name__) as agents,
                start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
            ):
                for _ in range(2):
                    reply = await runtime.ask("k", "hello")
                    assert (reply.status, reply.text) == ("complete", "hi")
                    [call] = reply.usage
                    tokens = (call.input_tokens, call.cache_read_tokens, call.output_tokens)
                    assert tokens == counted
                    assert (call.cache_write_tokens, call.reasoning_tokens) == (0, 0)
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning == f"{name} reports impossible numbers of tokens for m, which are ignored"
