"""An error while the last items of a response are built: its clients see the end all the same."""

from __future__ import annotations

import trio

from hermes import open_runtime
from hermes.adapters.http import HttpConfig
from hermes.adapters.http.endpoints import Services
from hermes.adapters.http.openai.responses.streams import live_response
from hermes.adapters.http.turns.logs import TurnLog, TurnLogs
from hermes.background import open_background
from hermes.events import TextDelta, TurnEnded, TurnStarted
from hermes.messages import Reply, StoredResponse
from hermes.telemetry.collecting import collecting
from tests.support.http import echo

RESPONSE = StoredResponse(
    id="resp_1", credential="tok", session_key="k", session_id="s", inbox_id=1,
    path="/v1/responses", digest="d", idempotency_key=None, echo={}, stored=True, created_at=0.0,
    connection="open",
)  # fmt: skip
BROKEN = Reply(text="hello", session_id="s", turn_id=1, status="complete", approvals=(None,))


async def test_an_item_that_cannot_be_built_does_not_end_the_server(path, caplog):
    async with open_runtime(path, agent=echo) as runtime, open_background() as background:
        services = Services(
            runtime=runtime, config=HttpConfig(), logs=TurnLogs(), secret=b"", nursery=background,
            draining=trio.Event(), collected=collecting(runtime),
        )  # fmt: skip
        log = TurnLog()
        live = live_response(services, RESPONSE, log)
        log.add(TurnStarted(1, "s", "cold", (1,)))
        log.add(TextDelta("hello"))
        log.add(TurnEnded(BROKEN, (1,)))
        with trio.fail_after(60):
            outcome = await live.ended()
    assert [item["content"][0]["text"] for item in outcome.output] == ["hello"]
    assert live.frames[-1].startswith(b"event: response.completed\n")
    assert "the end of resp_1 is not as it is stored" in caplog.text
