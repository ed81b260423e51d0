"""A minimal bot for the redaction tests, run as a process: a model, tools, logs, telemetry.

`python observed_bot.py <database> <log form> <prometheus file>`, with MODEL_URL, MODEL_KEY and
CANARIES (JSON) in the environment. Each line of input is a message; each reply is a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from urllib.parse import quote

import trio

from hermes import open_runtime
from hermes.agents.factory import chat_agents
from hermes.agents.providers.base import Endpoint, Secret
from hermes.agents.tools.toolbox import tool
from hermes.errors import Unsendable
from hermes.events import TextDelta, ToolFinished, ToolStarted
from hermes.messages import Source, ToolCall, TurnResult
from hermes.redaction import ValueRedactor
from hermes.run import logs
from hermes.run.telemetry import Telemetry

CANARIES = json.loads(os.environ["CANARIES"])


@tool
def environment() -> str:
    """Return the environment variables."""
    return "\n".join(f"{name}={value}" for name, value in os.environ.items())


@tool
def urls() -> str:
    """Return URLs that contain keys."""
    return " ".join(f"https://api.example/?key={quote(each, safe='')}" for each in CANARIES)


@tool
def spelled() -> dict:
    """Return keys as JSON and as repr."""
    return {"keys": CANARIES, "twice": json.dumps(CANARIES), "repr": repr(CANARIES)}


@tool
def broken() -> str:
    """Fail with keys in the message."""
    raise RuntimeError(f"cannot connect with {CANARIES!r}")


@tool(once=True)
def recorded() -> str:
    """Return keys; the result is recorded separately as well."""
    return " ".join(CANARIES)


class Platform:
    """A platform whose errors contain the URL that was called."""

    platform = "chat"
    local = True

    async def send(self, row):
        raise Unsendable(f"https://api.example/bot{CANARIES[0]}/send: gone")


async def hook(session_id, platform):
    raise ValueError(f"a hook with {CANARIES[1]}")


async def main() -> None:
    data, form, metrics = sys.argv[1:]
    path = Path(data)
    redact = ValueRedactor(CANARIES)
    logs.configure(form=form, level="debug", secrets=CANARIES, stream=sys.stderr)
    endpoint = Endpoint(
        base_url=os.environ["MODEL_URL"], model="m", name="the model", key=Secret.env("MODEL_KEY")
    )
    telemetry = Telemetry(
        path=path,
        log_event=logs.event_logger("hermes.turns"),
        prometheus_file=Path(metrics),
        interval=0.05,
        adapters=lambda: {"chat": f"failed at https://api.example/bot{CANARIES[2]}"},
        dropped=logs.dropped,
        redact=redact,
    )
    async with (
        chat_agents(
            endpoint, tools=[environment, urls, spelled, broken, recorded], redact=redact
        ) as agents,
        telemetry.observe(
            open_runtime(
                path,
                build_agent=lambda spec: Moody(agents.build(spec)),
                agent_spec=agents.agent_spec,
                compressor=agents.compressor(),
                hooks={"on_session_finalize": [hook]},
                adapters=[Platform()],
                redact=redact,
            )
        ) as runtime,
    ):
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            source = Source("chat", chat_id="1")
            async with runtime.stream("k", line.strip(), source=source) as stream:
                events = [event async for event in stream]
            pieces = [event.text for event in events if isinstance(event, TextDelta)]
            reply = stream.reply
            await telemetry.write_files(runtime)
            said = {"text": reply.text, "error": reply.error, "streamed": "".join(pieces)}
            sys.stdout.write(json.dumps(said | {"events": repr(events)}) + "\n")
            sys.stdout.flush()


class Moody:
    """The agent, which also fails and answers with keys."""

    def __init__(self, agent):
        self._agent = agent

    async def run(self, turn):
        if "fail" in turn.text:
            raise ConnectionError(f"401 for {CANARIES}")
        if "report" in turn.text:
            return TurnResult(failed=True, error=f"401 for {CANARIES}")
        if "talk" in turn.text:
            turn.emit(ToolStarted(ToolCall("c1", "own", json.dumps(CANARIES))))
            turn.emit(ToolFinished("c1", f"not one of our tools: {CANARIES}"))
            text = f"my keys are {CANARIES}"
            for place in range(0, len(text), 5):
                turn.emit(TextDelta(text[place : place + 5]))
            return text
        return await self._agent.run(turn)


trio.run(main)
