"""Calls to the owner of a conversation: run once, answered in any case, errors as they were."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
import trio

from hermes import errors
from hermes.actors.remote.calls import PATIENCE, CallOutcome, Calls
from hermes.actors.remote.errors import describe_error, make_error
from hermes.messages import Claim

CLAIM = Claim("key", 2, 1)


class Network:
    """Two nodes; a share of what they send is lost. The second one runs the calls."""

    def __init__(self, nursery, random, share, seconds=0.0):
        self.nursery, self.random, self.share, self.seconds = nursery, random, share, seconds
        self.ran = []
        self.serves = True
        self.calls = {
            node: Calls(lambda node=node: node, self.send, self.execute, nursery) for node in (1, 2)
        }

    def send(self, node, text):
        if self.random.random() >= self.share:
            self.nursery.start_soon(self.deliver, node, text)

    async def deliver(self, node, text):
        await trio.sleep(0.01)
        self.calls[node].receive(text)

    async def execute(self, call):
        self.ran.append(call.operation)
        await trio.sleep(self.seconds)
        return CallOutcome(call.call_id, "done", msgspec.Raw(call.operation))

    async def call(self, operation):
        async def still_serves(_):
            return self.serves

        return await self.calls[1].call(CLAIM, operation, still_serves)


@pytest.mark.parametrize("seed", range(10))
async def test_a_call_runs_once_however_much_is_lost(autojump_clock, nursery, seed):
    network = Network(nursery, Random(seed), 0.4)
    for number in range(20):
        outcome = await network.call(b"%d" % number)
        if outcome.state == "done":
            assert bytes(outcome.result) == b"%d" % number
        assert len(network.ran) == len(set(map(bytes, network.ran)))


async def test_a_caller_waits_as_long_as_the_owner_works(autojump_clock, nursery):
    network = Network(nursery, Random(0), 0, seconds=10 * PATIENCE)
    assert (await network.call(b"1")).state == "done"
    assert len(network.ran) == 1


@pytest.mark.parametrize("gone", ["silent", "not the owner"])
async def test_the_outcome_is_unknown_if_the_owner_is_gone(autojump_clock, nursery, gone):
    network = Network(nursery, Random(0), 1)
    network.serves = gone == "silent"
    began = trio.current_time()
    assert (await network.call(b"1")).state == "unknown"
    assert trio.current_time() - began <= (PATIENCE + 1 if network.serves else 1)


@pytest.mark.parametrize(
    "error",
    [
        errors.TitleTaken("a title", "session"),
        errors.TitleTooLong(101, 100),
        errors.AmbiguousTitle("two", ("one", "two")),
        errors.UnknownSession("there is no session"),
        errors.Overloaded("too much"),
        errors.CompressorFailed("none"),
        ValueError("a wrong value"),
    ],
)
def test_errors_arrive_as_they_were(error):
    made = make_error(
        msgspec.json.decode(
            msgspec.json.encode(describe_error(error)), type=type(describe_error(error))
        )
    )
    assert type(made) is type(error)
    assert (str(made), vars(made)) == (str(error), vars(error))


def test_an_error_that_is_not_known_keeps_its_text():
    class Unknown(errors.HermesError):
        pass

    made = make_error(describe_error(Unknown("what happened")))
    assert type(made) is errors.HermesError
    assert str(made) == "what happened"
