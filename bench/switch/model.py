"""The loopback model of the switching benchmark: a new one with an empty cache for each script.

It replies at once according to the script, and records for each request how much of the prompt it
had seen before, and which tagged messages it contained.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from functools import partial
from typing import Any

import attrs
import trio

from bench.switch import workload
from hermes.messages import ToolCall
from hermes.testing import ModelAnswer, ModelRequest, open_model
from hermes.testing.prefix_cache import PrefixCache, count_tokens

FOREVER = 1e9  # seconds: with a time limit, slow contenders would lose their cache
AT_ONCE = 10_000  # characters per streamed piece


@attrs.frozen
class Exchange:
    """A request and its reply."""

    request: ModelRequest
    turn: int | None
    reply: ModelAnswer

    def summary(self) -> dict[str, Any]:
        """Evaluated after the script, so that no turn waits for it."""
        said = [self.reply.text, *(call.name + call.arguments for call in self.reply.calls)]
        results = [m["content"] for m in self.request.json["messages"] if m["role"] == "tool"]
        spoilt = [r for r in results if not any("found" in t for t in workload.tags_in(str(r)))]
        return {
            "turn": self.turn,
            "prompt": self.request.prompt_tokens,
            "cached": self.request.cached_tokens,
            "output": count_tokens("".join(said).encode()),
            "tags": workload.tags_in(self.request.body.decode(errors="replace")),
            "spoilt": len(spoilt),
        }


@attrs.define
class ScriptedModel:
    """Replies according to the script, and records its exchanges."""

    exchanges: list[Exchange] = attrs.Factory(list)

    def answer(self, request: ModelRequest) -> ModelAnswer:
        turn = workload.turn_of(request.text)
        reply = self._reply(turn, request)
        self.exchanges.append(Exchange(request, turn, reply))
        return reply

    def _reply(self, turn: int | None, request: ModelRequest) -> ModelAnswer:
        if turn is None:  # the request is for a summary, a title or a review
            return ModelAnswer(workload.SUMMARY, chunk_size=AT_ONCE)
        word = workload.word_of(request.text)
        if word and request.json["messages"][-1]["role"] != "tool":
            arguments = json.dumps({"word": word})
            call = ToolCall(id=workload.call_id(turn), name=workload.TOOL, arguments=arguments)
            return ModelAnswer(calls=[call], chunk_size=AT_ONCE)
        return ModelAnswer(workload.answer(turn), chunk_size=AT_ONCE)


async def serve(
    closing: trio.Event, *, task_status: trio.TaskStatus[tuple[str, ScriptedModel]]
) -> None:
    """Serve one model until the event is set."""
    scripted = ScriptedModel()
    cache = PrefixCache(ttl=FOREVER, max_blocks=2_000_000)
    async with open_model(scripted.answer, cache=cache, keep=1) as model:
        task_status.started((model.openai_url, scripted))
        await closing.wait()


async def main() -> None:
    """`open` starts a model and returns its URL, `close` stops it and returns its requests."""
    responses = os.fdopen(os.dup(1), "w", buffering=1)
    print(json.dumps({"python": platform.python_version()}), file=responses)
    closing, scripted = trio.Event(), ScriptedModel()
    async with trio.open_nursery() as nursery:
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            figures: dict[str, Any]
            if json.loads(line)["do"] == "open":
                closing = trio.Event()
                url, scripted = await nursery.start(partial(serve, closing))
                figures = {"url": url}
            else:
                closing.set()
                figures = {"requests": [each.summary() for each in scripted.exchanges]}
            print(json.dumps({"figures": figures}), file=responses)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
