"""The loopback model of the switching benchmark: a fresh one, with an empty cache, for each run.

It answers at once, by the script's own rules, and notes of each request how much of it it had seen
before, and which writings from elsewhere it was shown.
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

from bench import workload
from hermes.messages import ToolCall
from hermes.testing import ModelAnswer, ModelRequest, open_model
from hermes.testing.prefix_cache import PrefixCache, count

NEVER = 1e9  # what is known is not forgotten: slow contenders would lose their cache by the clock


@attrs.frozen
class Asked:
    """A request, and what it was answered with."""

    request: ModelRequest
    turn: int | None
    answer: ModelAnswer

    def told(self) -> dict[str, Any]:
        """What is of interest; looked at when all is over, so that nobody waits for it."""
        said = [self.answer.text, *(c.name + c.arguments for c in self.answer.calls)]
        results = [m["content"] for m in self.request.json["messages"] if m["role"] == "tool"]
        spoilt = [r for r in results if not any("found" in t for t in workload.tags_in(str(r)))]
        return {
            "turn": self.turn,
            "prompt": self.request.prompt_tokens,
            "cached": self.request.cached_tokens,
            "output": count("".join(said).encode()),
            "tags": workload.tags_in(self.request.body.decode(errors="replace")),
            "spoilt": len(spoilt),
        }


@attrs.define
class Log:
    """A model that follows the script, and what it was asked."""

    requests: list[Asked] = attrs.Factory(list)

    def answer(self, request: ModelRequest) -> ModelAnswer:
        number = workload.turn_of(request.text)
        said = self._say(number, request.text, request)
        self.requests.append(Asked(request, number, said))
        return said

    def _say(self, number: int | None, text: str, request: ModelRequest) -> ModelAnswer:
        if number is None:  # somebody wants a summary, a title or a review
            return ModelAnswer(workload.SUMMARY, piece=10_000)
        word = workload.word_of(text)
        if word and request.json["messages"][-1]["role"] != "tool":
            arguments = json.dumps({"word": word})
            call = ToolCall(id=workload.call_id(number), name=workload.TOOL, arguments=arguments)
            return ModelAnswer(calls=[call], piece=10_000)
        return ModelAnswer(workload.answer(number), piece=10_000)


async def serve(ending: trio.Event, *, task_status: trio.TaskStatus[tuple[str, Log]]) -> None:
    """One model, until it is told to end."""
    log = Log()
    cache = PrefixCache(seconds=NEVER, max_steps=2_000_000)
    async with open_model(log.answer, cache=cache, keep=1) as model:
        task_status.started((model.openai_url, log))
        await ending.wait()


async def main() -> None:
    """`open` starts a model and says where it is, `close` ends it and tells what it was asked."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    print(json.dumps({"python": platform.python_version()}), file=answers)
    ending, log = trio.Event(), Log()
    async with trio.open_nursery() as nursery:
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            figures: dict[str, Any]
            if json.loads(line)["do"] == "open":
                ending = trio.Event()
                url, log = await nursery.start(partial(serve, ending))
                figures = {"url": url}
            else:
                ending.set()
                figures = {"requests": [each.told() for each in log.requests]}
            print(json.dumps({"figures": figures}), file=answers)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
