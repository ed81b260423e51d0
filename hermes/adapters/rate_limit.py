"""Rate limiter for calls to a platform: per token, per chat and per group.

One limiter belongs to one token, and every call to the platform goes through it: final messages
with `acquire`, which waits; previews and typing indicators with `try_acquire`, which gives way to
final messages. If the platform itself asks for a delay (429, `retry_after`), call `pause`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import attrs
import trio

from hermes.background import holding


@attrs.frozen
class Rate:
    """At most `calls` calls within any period of `seconds` seconds."""

    calls: int = attrs.field(validator=attrs.validators.ge(1))
    seconds: float = attrs.field(validator=attrs.validators.ge(0))


class _Window:
    """Sliding window: the times of recent calls, and a queue for the next one."""

    def __init__(self, rates: Sequence[Rate]) -> None:
        self._times: deque[float] = deque(maxlen=max(rate.calls for rate in rates))
        self._longest = max(rate.seconds for rate in rates)
        self._paused_until = -math.inf
        self.queue = trio.Lock()  # fair; a cancelled waiter gives up its place

    def free_at(self, rates: Sequence[Rate]) -> float:
        """Return the time from which the next call is within the rates."""
        return max(
            self._paused_until,
            *(
                self._times[-rate.calls] + rate.seconds
                for rate in rates
                if rate.calls <= len(self._times)
            ),
            -math.inf,
        )

    def half_free_at(self, rates: Sequence[Rate]) -> float:
        """Return the time from which a call leaves half of each rate unused."""
        return self.free_at([attrs.evolve(rate, calls=-(-rate.calls // 2)) for rate in rates])

    def record(self) -> None:
        self._times.append(trio.current_time())

    def pause(self, seconds: float) -> None:
        self._paused_until = max(self._paused_until, trio.current_time() + seconds)

    @property
    def idle(self) -> bool:
        """Whether the window can be dropped: no recent call, no pause, no waiter."""
        last = self._times[-1] if self._times else -math.inf
        expires = max(last + self._longest, self._paused_until)
        return expires <= trio.current_time() and not self.queue.locked()


class RateLimiter:
    """Keeps the calls to a platform within its rates, in the order in which they were requested.

    Chats take turns if they all wait for the token. A chat that waits for its own rate delays no
    other chat. A call counts from the moment it is allowed. A group is subject to both `per_chat`
    and `per_group`.
    """

    def __init__(self, *, per_token: Rate, per_chat: Rate, per_group: Rate | None = None) -> None:
        self._per_token = (per_token,)
        self._per_chat = (per_chat,)
        self._per_group = self._per_chat if per_group is None else (per_chat, per_group)
        self._token = _Window(self._per_token)
        self._chats: dict[str, _Window] = {}

    async def acquire(self, chat: str, *, group: bool = False) -> None:
        """Wait until a call to this chat is allowed, and count it."""
        window, rates = self._window(chat), self._rates(group=group)
        async with holding(window.queue):
            while True:
                await _wait_free(window, rates)
                async with holding(self._token.queue):
                    await _wait_free(self._token, self._per_token)
                    if window.free_at(rates) <= trio.current_time():  # not paused in the meantime
                        self._record(window)
                        return

    def try_acquire(self, chat: str, *, group: bool = False) -> bool:
        """Count an optional call and return True if it can be made now without delaying others.

        That is: nobody waits for this chat or for the token, and half of each rate stays free for
        calls that follow. A rate of a single call cannot be halved: an optional call may then delay
        the next one by that rate's period.
        """
        now, window, rates = trio.current_time(), self._window(chat), self._rates(group=group)
        if window.queue.locked() or self._token.queue.locked():
            return False
        if max(window.half_free_at(rates), self._token.half_free_at(self._per_token)) > now:
            return False
        self._record(window)
        return True

    def pause(self, seconds: float, chat: str | None = None) -> None:
        """Allow no call for `seconds`, to this chat or (without `chat`) to any."""
        window = self._token if chat is None else self._window(chat)
        window.pause(seconds)

    def _rates(self, *, group: bool) -> Sequence[Rate]:
        return self._per_group if group else self._per_chat

    def _record(self, window: _Window) -> None:
        self._token.record()
        window.record()

    def _window(self, chat: str) -> _Window:
        """Return the window of a chat. Each lookup also drops up to two idle windows."""
        for name in [name for name, _ in zip(self._chats, range(2), strict=False)]:
            window = self._chats.pop(name)
            if not window.idle:
                self._chats[name] = window
        found = self._chats.get(chat)
        if found is None:
            found = self._chats[chat] = _Window(self._per_group)
        return found


async def _wait_free(window: _Window, rates: Sequence[Rate]) -> None:
    # A pause may be added during the sleep; it never shortens the wait.
    while (free := window.free_at(rates)) > trio.current_time():  # noqa: ASYNC110
        await trio.sleep_until(free)
