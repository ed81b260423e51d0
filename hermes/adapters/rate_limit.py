"""How often a platform may be called: per chat and per token, whatever the call is for.

A governor belongs to one token. Whoever wants to call the platform waits for it first: finals with
`wait`, previews and typing signs with `try_now`, which gives way to finals. What the platform asks
for by itself (429, `retry_after`) is told with `pause`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import attrs
import trio


@attrs.frozen
class Rate:
    """At most so many calls in any stretch of so many seconds."""

    calls: int = attrs.field(validator=attrs.validators.ge(1))
    seconds: float = attrs.field(validator=attrs.validators.ge(0))


class _Window:
    """The calls of late, and who is next."""

    def __init__(self, rates: Sequence[Rate]) -> None:
        self._times: deque[float] = deque(maxlen=max(rate.calls for rate in rates))
        self._longest = max(rate.seconds for rate in rates)
        self._paused_until = -math.inf
        self.turn = trio.Lock()  # first come, first served; who is cancelled gives his place back

    def free_at(self, rates: Sequence[Rate]) -> float:
        """When the next call may be made."""
        return max(
            self._paused_until,
            *(
                self._times[-rate.calls] + rate.seconds
                for rate in rates
                if rate.calls <= len(self._times)
            ),
            -math.inf,
        )

    def spare_at(self, rates: Sequence[Rate]) -> float:
        """When a call may be made that leaves half of each rate to others."""
        return self.free_at([attrs.evolve(rate, calls=-(-rate.calls // 2)) for rate in rates])

    def count(self) -> None:
        self._times.append(trio.current_time())

    def pause(self, seconds: float) -> None:
        self._paused_until = max(self._paused_until, trio.current_time() + seconds)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to remember."""
        last = self._times[-1] if self._times else -math.inf
        over = max(last + self._longest, self._paused_until)
        return over <= trio.current_time() and not self.turn.locked()


class RateLimiter:
    """Keeps the calls to a platform within its rates, in the order in which they were asked for.

    Chats take turns where the token is what everybody waits for; a chat that has to wait for
    itself holds up no other. A call counts from when it is allowed. A group is held to the rate of
    a chat and to its own.
    """

    def __init__(self, *, per_token: Rate, per_chat: Rate, per_group: Rate | None = None) -> None:
        self._per_token = (per_token,)
        self._per_chat = (per_chat,)
        self._per_group = self._per_chat if per_group is None else (per_chat, per_group)
        self._token = _Window(self._per_token)
        self._chats: dict[str, _Window] = {}

    async def wait(self, chat: str, *, group: bool = False) -> None:
        """Wait until this chat may be called, and count the call."""
        window, rates = self._window(chat), self._rates(group=group)
        async with window.turn:
            while True:
                await _until(window, rates)
                async with self._token.turn:
                    await _until(self._token, self._per_token)
                    if window.free_at(rates) <= trio.current_time():  # not paused meanwhile
                        self._count(window)
                        return

    def try_now(self, chat: str, *, group: bool = False) -> bool:
        """Count a call that may be left out, if it can be made now without delaying any other.

        That is: nobody waits for this chat or for the token, and half of each rate is left to
        those who come next. A rate of a single call cannot be halved: a preview may then delay
        the final by that rate's seconds.
        """
        now, window, rates = trio.current_time(), self._window(chat), self._rates(group=group)
        if window.turn.locked() or self._token.turn.locked():
            return False
        if max(window.spare_at(rates), self._token.spare_at(self._per_token)) > now:
            return False
        self._count(window)
        return True

    def pause(self, seconds: float, chat: str | None = None) -> None:
        """The platform wants to be left alone for a while: in one chat, or altogether."""
        window = self._token if chat is None else self._window(chat)
        window.pause(seconds)

    def _rates(self, *, group: bool) -> Sequence[Rate]:
        return self._per_group if group else self._per_chat

    def _count(self, window: _Window) -> None:
        self._token.count()
        window.count()

    def _window(self, chat: str) -> _Window:
        """The calls of a chat; for each that is asked for, two of the others may be forgotten."""
        for each in [name for name, _ in zip(self._chats, range(2), strict=False)]:
            window = self._chats.pop(each)
            if not window.idle:
                self._chats[each] = window
        found = self._chats.get(chat)
        if found is None:
            found = self._chats[chat] = _Window(self._per_group)
        return found


async def _until(window: _Window, rates: Sequence[Rate]) -> None:
    # A pause may come meanwhile; it never makes the wait shorter.
    while (free := window.free_at(rates)) > trio.current_time():  # noqa: ASYNC110
        await trio.sleep_until(free)
