"""Errors of Hermes can be sent to another process: each is unpickled as it was."""

from __future__ import annotations

import copy
import pickle

import pytest

from hermes import errors
from hermes.errors import (
    AlreadyAnswered,
    CompressorFailed,
    HermesError,
    ReplyTimeout,
    RetryAfter,
    TitleTaken,
    TitleTooLong,
)
from hermes.messages import Receipt

RECEIPT = Receipt(1, "k", "s", 1, 0.0)
WITH_VALUES = {AlreadyAnswered, ReplyTimeout, RetryAfter, TitleTaken, TitleTooLong}
PLAIN = [
    kind("why")
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HermesError) and kind not in WITH_VALUES
]
ERRORS = [
    *PLAIN,
    AlreadyAnswered("before", RECEIPT),
    ReplyTimeout("too late", RECEIPT),
    RetryAfter("slower", 2.5),
    TitleTaken("Plans", "s"),
    TitleTooLong(101, 100),
    CompressorFailed("no", lasting=True, retry_after=3.0),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_an_error_is_copied_whole(error, copied):
    twin = copied(error)
    assert type(twin) is type(error)
    assert (str(twin), vars(twin)) == (str(error), vars(error))
