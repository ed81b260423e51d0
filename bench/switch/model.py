"""The model of the switching benchmark, with a prefix cache that is emptied after each script.

It replies at once according to the script, and records for each request how much of the prompt it
had seen before, and which tagged messages it contained.
"""

from __future__ import annotations

import json
from typing import Any

import trio

from bench.harness.model import serve_model
from bench.switch import workload
from hermes.messages import ToolCall
from hermes.testing import ModelAnswer, ModelRequest
from hermes.testing.prefix_cache import PrefixCache, count_tokens

AT_ONCE = 10_000  # characters per streamed piece


class ScriptedModel:
    """Replies according to the script, and records its exchanges."""

    def __init__(self) -> None:
        self.cache = PrefixCache()
        self._exchanges: list[tuple[ModelRequest, ModelAnswer]] = []
        self._empty_cache()

    def _empty_cache(self) -> None:
        """Keep everything from now on: with a time limit, slow contenders would lose it."""
        PrefixCache.__init__(self.cache, ttl=1e9, max_blocks=2_000_000)

    def answer(self, request: ModelRequest) -> ModelAnswer:
        reply = self._reply(request)
        self._exchanges.append((request, reply))
        return reply

    def _reply(self, request: ModelRequest) -> ModelAnswer:
        turn = workload.turn_of(request.text)
        if turn is None:  # the request is for a summary, a title or a review
            return ModelAnswer(workload.SUMMARY, chunk_size=AT_ONCE)
        word = workload.word_of(request.text)
        if word and request.json["messages"][-1]["role"] != "tool":
            arguments = json.dumps({"word": word})
            call = ToolCall(id=workload.call_id(turn), name=workload.TOOL, arguments=arguments)
            return ModelAnswer(calls=[call], chunk_size=AT_ONCE)
        return ModelAnswer(workload.answer(turn), chunk_size=AT_ONCE)

    def take(self) -> list[dict[str, Any]]:
        """Return the requests of a script and forget them."""
        taken = [summary(*exchange) for exchange in self._exchanges]
        self._exchanges.clear()
        self._empty_cache()
        return taken


def summary(request: ModelRequest, reply: ModelAnswer) -> dict[str, Any]:
    """Describe an exchange; called after the script, so that no turn waits for it."""
    said = [reply.text, *(call.name + call.arguments for call in reply.calls)]
    results = [m["content"] for m in request.json["messages"] if m["role"] == "tool"]
    spoilt = [r for r in results if not any("found" in t for t in workload.tags_in(str(r)))]
    return {
        "turn": workload.turn_of(request.text),
        "prompt": request.prompt_tokens,
        "cached": request.cached_tokens,
        "output": count_tokens("".join(said).encode()),
        "tags": workload.tags_in(request.body.decode(errors="replace")),
        "spoilt": len(spoilt),
    }


if __name__ == "__main__":
    scripted = ScriptedModel()
    trio.run(serve_model, scripted.answer, scripted.cache, scripted.take)
