"""When automatic compression is suspended."""

from __future__ import annotations

import pytest

from hermes import CompressionConfig
from hermes.actors.compression.compressor import DAY, SessionCompressor
from hermes.actors.compression.types import CompressionState


@pytest.mark.parametrize(
    ("ahead", "suspended"), [(-1.0, False), (60.0, True), (DAY, True), (31 * DAY, False)]
)
def test_a_cool_down_that_a_wrong_clock_dated_in_the_future_has_ended(ahead, suspended):
    compressor = SessionCompressor(None, None, CompressionConfig(), lambda: 1000.0)
    state = CompressionState(not_before=1000.0 + ahead, error="x")
    assert (compressor.suspended(state) is not None) == suspended
