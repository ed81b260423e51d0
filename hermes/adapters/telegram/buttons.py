"""Buttons below questions for approval, which disappear when the call is decided."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from hermes.messages import JsonObject
from hermes.texts import Texts

MAX_QUESTIONS = 1000
T = TypeVar("T")


def keyboard(about: str, texts: Texts) -> JsonObject:
    """Return the buttons below a question; each sends its command and what that is about."""
    buttons = {
        "approve": texts.button_approve,
        "approve always": texts.button_always,
        "deny": texts.button_deny,
    }
    return {
        "inline_keyboard": [
            [
                {"text": text, "callback_data": f"{command} {about}"}
                for command, text in buttons.items()
            ]
        ]
    }


class Questions(Generic[T]):
    """The latest messages with buttons, by the numbers of their calls; `T` names a message.

    They are not stored: after a restart, buttons disappear only if they are pressed.
    """

    def __init__(self) -> None:
        self._open: dict[int, T] = {}
        self._decided: deque[T] = deque(maxlen=MAX_QUESTIONS)
        """Messages whose buttons are being removed."""

    def asked(self, number: int, message: T) -> None:
        """Remember a question that was sent."""
        self._open[number] = message
        if len(self._open) > MAX_QUESTIONS:
            del self._open[next(iter(self._open))]

    def decided(self, number: int) -> T | None:
        """Return the message whose buttons must be removed, because its call was decided."""
        message = self._open.pop(number, None)
        if message is None or not self.pressed(message):
            return None
        return message

    def pressed(self, message: T) -> bool:
        """Note that the buttons of a message are about to be removed; False if it was noted."""
        if message in self._decided:
            return False
        self._decided.append(message)
        return True
