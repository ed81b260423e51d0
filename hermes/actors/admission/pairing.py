"""`/pair` and `/unpair`: an operator lets in a user that holds a code, or removes it again.

The code only says which request is meant. It opens nothing by itself: only an operator's command
does.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable, Sequence
from typing import TypeAlias

from hermes.messages import (
    InboxReply,
    Outbound,
    Pairing,
    PairingRejected,
    Principal,
    Role,
    Source,
)
from hermes.outbound import outbox_rows
from hermes.protocols import AccessStore
from hermes.sanitize import shorten
from hermes.session_keys import WEB_PLATFORM
from hermes.texts import Texts

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Without I, L and O, which look like 1 and 0, and without U: 5 bits each."""
LENGTH = 8
_TYPED = re.compile(rf"([{ALPHABET}]{{4}})[-–—]?([{ALPHABET}]{{4}})", re.ASCII)
_LOOK_ALIKES = str.maketrans("ILO", "110")
_NAME_LENGTH = 60
_GRANTABLE: tuple[Role, ...] = ("user", "operator")

ReplyTo: TypeAlias = Callable[[str], InboxReply]
"""Makes the reply to the command from its text."""


def new_code() -> str:
    """Return a new code of 40 bits, in the form that users see."""
    letters = "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))
    return f"{letters[:4]}-{letters[4:]}"


def read_code(typed: str) -> str | None:
    """Return the code in the form that users see, however it was typed; None if it is none."""
    found = _TYPED.fullmatch(typed.upper().translate(_LOOK_ALIKES))
    return None if found is None else f"{found[1]}-{found[2]}"


async def pair(
    store: AccessStore, by: Source, argument: str, reply: ReplyTo, texts: Texts
) -> str | None:
    """Let a user in, as a user or an operator. Returns the answer; None if it is no valid code."""
    typed, _, role_name = argument.partition(" ")
    code = read_code(typed)
    role = next(
        (role for role in _GRANTABLE if role == (role_name.strip().lower() or "user")), None
    )
    if code is None or role is None:
        return None
    replies: list[str] = []  # the transaction may run twice; the last text is the stored one

    def answer(result: Pairing | PairingRejected) -> InboxReply:
        replies.append(_result_text(result, role, texts))
        return reply(replies[-1])

    welcome = functools.partial(welcome_rows, texts)
    await store.approve_pairing(code, role, by, answer=answer, welcome=welcome)
    return replies[-1]


async def unpair(store: AccessStore, argument: str, reply: ReplyTo, texts: Texts) -> str | None:
    """Remove a paired user. Returns the answer; None if the argument is incomplete."""
    platform, _, user_id = argument.partition(" ")
    user_id = user_id.strip()
    if not platform or not user_id:
        return None

    def text(removed: int) -> str:
        form = texts.unpaired if removed else texts.never_paired
        return form.format(user_id=display_name(user_id), platform=display_name(platform))

    return text(await store.unpair(platform, user_id, answer=lambda n: reply(text(n))))


async def listing(store: AccessStore, now: float, texts: Texts) -> str:
    """Return the pending requests and the paired users, one per line."""
    requests, paired = await store.pairings(), await store.principals()
    lines = [*_request_lines(requests, now, texts), *_paired_lines(paired, texts)]
    return "\n".join(lines) or texts.nobody_paired


def _request_lines(requests: Sequence[Pairing], now: float, texts: Texts) -> list[str]:
    return [
        texts.pairing_request.format(
            time=_minutes(now - request.asked_at, texts), user=describe(request.source, texts)
        )
        for request in requests
    ]


def _paired_lines(paired: Sequence[Principal], texts: Texts) -> list[str]:
    return [
        texts.paired_user.format(role=each.role, user=describe(_source(each), texts))
        for each in paired
    ]


def _source(principal: Principal) -> Source:
    return Source(
        principal.platform,
        principal.account,
        user_id=principal.user_id,
        user_name=principal.name,
    )


def _result_text(result: Pairing | PairingRejected, role: Role, texts: Texts) -> str:
    if isinstance(result, Pairing):
        return texts.paired.format(user=describe(result.source, texts), role=role)
    if result.seconds:
        return texts.pairing_locked.format(time=_minutes(result.seconds, texts))
    return texts.wrong_code_last if result.left == 1 else texts.wrong_code.format(left=result.left)


def welcome_rows(texts: Texts, pairing: Pairing) -> list[Outbound]:
    """Return the outbox rows that tell a user that it was let in; the web page finds out itself."""
    if pairing.source.platform == WEB_PLATFORM:
        return []
    text = texts.pairing_welcome
    return outbox_rows(pairing.source, pairing.session_key, "", text, "notice")


def describe(source: Source, texts: Texts) -> str:
    """Return a sender in words, for an operator."""
    account = f"/{display_name(source.account)}" if source.account else ""
    platform, user_id = display_name(source.platform) + account, display_name(source.user_id or "")
    if not source.user_name:
        return texts.sender.format(user_id=user_id, platform=platform)
    name = repr(display_name(source.user_name))
    return texts.sender_named.format(user_id=user_id, platform=platform, name=name)


def _minutes(seconds: float, texts: Texts) -> str:
    minutes = max(1, round(seconds / 60))
    return texts.one_minute if minutes == 1 else texts.minutes.format(minutes=minutes)


def display_name(text: str) -> str:
    """Return untrusted text on one short line, without control characters."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shorten(printable, _NAME_LENGTH)
