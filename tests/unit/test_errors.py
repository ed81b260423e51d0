"""Errors of Hermes can be sent to another process: each is unpickled as it was."""

from __future__ import annotations

import copy
import pickle

import pytest

from hermes import errors
from hermes.errors import CompressorFailed, HermesError, RetryAfter

PLAIN = [
    kind("why")
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HermesError) and kind is not RetryAfter
]
ERRORS = [
    *PLAIN,
    RetryAfter("slower", 2.5),
    CompressorFailed("no", lasting=True, retry_after=3.0),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_an_error_is_copied_whole(error, copied):
    twin = copied(error)
    assert type(twin) is type(error)
    assert (str(twin), vars(twin)) == (str(error), vars(error))
