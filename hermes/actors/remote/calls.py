"""Calls to the node that serves a conversation: requests with an id, and their outcomes.

Hints may be lost or repeated. So a call is sent again until it is answered, and the owner runs it
once: it remembers the calls that it has received.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeAlias

import msgspec
import trio

from hermes.actors.remote.errors import RemoteError
from hermes.background import set_event, start_soon
from hermes.messages import Claim

SEND_AGAIN: Final = 1.0
"""Seconds after which a call that was not answered is sent again."""
PATIENCE: Final = 10.0
"""Seconds without a sign of the owner after which a caller gives up."""
MAX_REMEMBERED: Final = 1000
"""Calls that have ended and are remembered."""

CallState: TypeAlias = Literal["working", "done", "failed", "moved", "unknown"]
"""`moved`: nothing was done, for another node serves the conversation. `unknown`: perhaps it was
done."""


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A request to the owner of a conversation."""

    node: int
    """The node that asks."""
    call_id: str
    session_key: str
    operation: msgspec.Raw


class CallOutcome(msgspec.Struct, frozen=True, tag="outcome", omit_defaults=True):
    """What has become of a call so far."""

    call_id: str
    state: CallState
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: RemoteError | None = None


CallFrame: TypeAlias = Call | CallOutcome
Execute: TypeAlias = Callable[[Call], Awaitable[CallOutcome]]
encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
decode: Callable[[bytes | str], CallFrame] = msgspec.json.Decoder(CallFrame).decode


class _Waiting:
    """A call of this node that is not answered yet."""

    def __init__(self) -> None:
        self.outcome: CallOutcome | None = None
        self.heard_at = trio.current_time()
        self.answered = trio.Event()


class Calls:
    """The calls of this node, and those that other nodes make here."""

    def __init__(
        self,
        node: Callable[[], int],
        send: Callable[[int, str], None],
        execute: Execute,
        nursery: trio.Nursery,
    ) -> None:
        self._node = node
        self._send = send
        self._execute = execute
        self._nursery = nursery
        self._waiting: dict[str, _Waiting] = {}
        self._received: OrderedDict[str, CallOutcome | None] = OrderedDict()
        """The calls of other nodes, with their outcomes once they have ended."""

    async def call(
        self, claim: Claim, operation: bytes, still_serves: Callable[[Claim], Awaitable[bool]]
    ) -> CallOutcome:
        """Have the owner of a conversation run an operation.

        Waits as long as the owner says that it works on it. If it does not answer, or serves the
        conversation no more, the outcome is `unknown`.
        """
        call_id = secrets.token_hex(12)
        frame = Call(self._node(), call_id, claim.session_key, msgspec.Raw(operation))
        text, waiting = encode(frame).decode(), _Waiting()
        self._waiting[call_id] = waiting
        try:
            while trio.current_time() < waiting.heard_at + PATIENCE:
                self._send(claim.node, text)
                with trio.move_on_after(SEND_AGAIN):
                    await waiting.answered.wait()
                if waiting.outcome is not None:
                    return waiting.outcome
                if not await still_serves(claim):
                    break
            return waiting.outcome or CallOutcome(call_id, "unknown")
        finally:
            del self._waiting[call_id]

    def receive(self, text: str) -> None:
        """Take what another node asks or answers."""
        match decode(text):
            case CallOutcome() as outcome:
                self._take(outcome)
            case Call() as call:
                self._begin(call)

    def _take(self, outcome: CallOutcome) -> None:
        waiting = self._waiting.get(outcome.call_id)
        if waiting is None:
            return
        waiting.heard_at = trio.current_time()
        if outcome.state != "working":
            waiting.outcome = outcome
            set_event(waiting.answered)

    def _begin(self, call: Call) -> None:
        if call.call_id in self._received:
            outcome = self._received[call.call_id] or CallOutcome(call.call_id, "working")
            self._send(call.node, encode(outcome).decode())
            return
        self._received[call.call_id] = None
        start_soon(self._nursery, self._run, call)

    async def _run(self, call: Call) -> None:
        outcome = CallOutcome(call.call_id, "unknown")
        try:
            outcome = await self._execute(call)
        finally:
            self._received[call.call_id] = outcome
            self._received.move_to_end(call.call_id)
            self._send(call.node, encode(outcome).decode())
            self._forget()

    def _forget(self) -> None:
        """Forget the oldest calls that have ended, beyond those that are remembered."""
        ended = [call_id for call_id, outcome in self._received.items() if outcome is not None]
        for call_id in ended[: max(0, len(ended) - MAX_REMEMBERED)]:
            del self._received[call_id]
