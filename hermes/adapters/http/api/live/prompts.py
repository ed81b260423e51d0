"""Compares the prompts before and after an agent was built anew, from what was recorded."""

from __future__ import annotations

from hermes.actors.rebuild import bytes_difference
from hermes.actors.runtime import Runtime
from hermes.adapters.http.api.live.types import PromptComparison
from hermes.messages import PastTurn

SEARCHED = 20
"""Earlier turns among which the one with the last prompt is looked for."""
NOT_RECORDED = "no prompt of this turn was recorded"
NOTHING_EARLIER = "no earlier prompt was recorded"


async def compare_prompts(runtime: Runtime, key: str, turn_id: int) -> PromptComparison:
    """Return how the first prompt of a turn differs from the last one before it."""
    turns = await runtime.api.past_turns(key, before=turn_id + 1, limit=SEARCHED)
    if not turns or turns[0].turn_id != turn_id or not turns[0].calls:
        return PromptComparison(turn_id=turn_id, reasons=[NOT_RECORDED])
    earlier = next((turn for turn in turns[1:] if turn.calls), None)
    if earlier is None:
        return PromptComparison(turn_id=turn_id, reasons=[NOTHING_EARLIER])
    return await _compare(runtime, key, earlier, turn_id)


async def _compare(runtime: Runtime, key: str, earlier: PastTurn, turn_id: int) -> PromptComparison:
    old = await runtime.api.rebuild_call(key, earlier.turn_id, len(earlier.calls) - 1)
    new = await runtime.api.rebuild_call(key, turn_id, 0)
    reasons = list(dict.fromkeys([*old.reasons, *new.reasons]))
    if old.body is None or new.body is None:
        return PromptComparison(turn_id=turn_id, earlier_turn=earlier.turn_id, reasons=reasons)
    difference = bytes_difference("prompt", old.body, new.body)
    ends = old.body[difference.offset :][:1], new.body[difference.offset :][:1]
    return PromptComparison(
        turn_id=turn_id,
        earlier_turn=earlier.turn_id,
        exact=old.verdict == new.verdict == "same",
        extended=ends == (b"]", b","),  # of the list of messages
        difference=difference,
        reasons=reasons,
    )
