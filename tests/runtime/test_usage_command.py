"""`/usage`: tokens and cost so far, and what could not be priced."""

from __future__ import annotations

import pytest

from hermes import TurnResult
from hermes.messages import Usage
from tests.support.conversations import scripted

PRICED = Usage(model="big", input_tokens=5, output_tokens=2, cost=0.5)
UNPRICED = Usage(model="small", input_tokens=7)


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([PRICED], "1 call, 5 input tokens (and 0 from the cache), 2 output tokens, cost 0.5000."),
        (
            [PRICED, UNPRICED, UNPRICED],
            "3 calls, 19 input tokens (and 0 from the cache), 2 output tokens, cost 0.5000. "
            "Calls without a price: 2 (small).",
        ),
        (
            [UNPRICED, Usage(model="other")],
            "2 calls, 7 input tokens (and 0 from the cache), 0 output tokens. "
            "Calls without a price: 2 (other, small).",
        ),
        (
            [UNPRICED],
            "1 call, 7 input tokens (and 0 from the cache), 0 output tokens. "
            "Calls without a price: 1 (small).",
        ),
        ([], "0 calls, 0 input tokens (and 0 from the cache), 0 output tokens."),
    ],
)
async def test_usage_says_what_was_not_priced(start, calls, text):
    async with start(agent=scripted(TurnResult(text="yes", usage=calls))[0]) as runtime:
        await runtime.ask("k", "hello")
        assert (await runtime.ask("k", "/usage")).text == text
