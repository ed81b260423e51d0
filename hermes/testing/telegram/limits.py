"""Flood control: too many messages are refused with 429 and a time to wait."""

from __future__ import annotations

import math
from collections import deque

import attrs

from hermes.testing.telegram.chats import Chat
from hermes.testing.telegram.errors import ApiError

IN_FLIGHT = 0.25
"""A call that arrives so soon after a 429 was probably sent before the client had read it."""


@attrs.frozen(kw_only=True)
class Limits:
    """How many messages in how many seconds: per chat, per group in addition, and per token."""

    per_chat: tuple[int, float] = (1, 1.0)
    per_group: tuple[int, float] = (20, 60.0)
    per_token: tuple[int, float] = (30, 1.0)


NO_LIMITS = Limits(per_chat=(10**6, 1.0), per_group=(10**6, 1.0), per_token=(10**6, 1.0))


@attrs.define
class FloodControl:
    """Enforces the limits, and counts the calls that exceed them."""

    limits: Limits
    floods: int = 0
    """How many calls were refused."""
    impatient: int = 0
    """How many calls came before the time that an earlier 429 asked to wait."""
    _sent: dict[object, deque[float]] = attrs.field(init=False, factory=dict)
    _waits: dict[int, tuple[float, float]] = attrs.field(init=False, factory=dict)
    """By chat: when a 429 was sent, and until when it asked to wait."""

    def forget_waits(self) -> None:
        """Forget who was asked to wait, for example because another client calls now."""
        self._waits.clear()

    def check(self, chat: Chat, now: float) -> None:
        """Count a message to a chat; raises `ApiError` if it exceeds a limit."""
        limits: list[tuple[object, tuple[int, float]]] = [
            (chat.id, self.limits.per_chat), ("token", self.limits.per_token)
        ]  # fmt: skip
        if chat.type != "private":
            limits.append((("group", chat.id), self.limits.per_group))
        refused_at, until = self._waits.get(chat.id, (math.inf, -math.inf))
        self.impatient += refused_at + IN_FLIGHT < now < until
        wait = max(self._wait(name, count, seconds, now) for name, (count, seconds) in limits)
        if wait > 0:
            self.floods += 1
            wait = math.ceil(wait) if wait > 1 else wait
            self._waits[chat.id] = (now, now + wait)
            raise ApiError(429, f"Too Many Requests: retry after {wait:g}", {"retry_after": wait})
        for name, (count, _) in limits:
            self._sent.setdefault(name, deque(maxlen=count)).append(now)

    def _wait(self, name: object, count: int, seconds: float, now: float) -> float:
        sent = self._sent.get(name) or deque[float]()
        return 0.0 if len(sent) < count else sent[0] + seconds - now
