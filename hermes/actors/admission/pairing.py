"""`/pair` and `/unpair`: an operator lets in a user that holds a code, or removes it again.

The code only says which request is meant. It opens nothing by itself: only an operator's command
does.
"""

from __future__ import annotations

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

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Without I, L and O, which look like 1 and 0, and without U: 5 bits each."""
LENGTH = 8
_TYPED = re.compile(rf"([{ALPHABET}]{{4}})[-–—]?([{ALPHABET}]{{4}})", re.ASCII)
_LOOK_ALIKES = str.maketrans("ILO", "110")
_NAME_LENGTH = 60
_GRANTABLE: tuple[Role, ...] = ("user", "operator")

OFFER = "I don't know you yet. Ask the operator to run this within an hour: /pair {code}"
WELCOME = "You have been let in. Send a message, or see /help."
PAIRED = "{user} has been let in as {role}."
WRONG_CODE = (
    "No request has this code. A code works once, within an hour. {left} left before a pause."
)
LOCKED = "There were too many wrong codes. Try again in {minutes}."
NOBODY = "There are no pairing requests and no paired users."
UNPAIRED = "{user_id} on {platform} has been removed."
NEVER_PAIRED = "{user_id} on {platform} is not a paired user."
NO_ACCESS_CONTROL = "The host program decides who may use this bot, so there is nothing to pair."
NOT_OPERATOR = "This command is for operators, and you are not one any more."

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


async def pair(store: AccessStore, by: Source, argument: str, reply: ReplyTo) -> str | None:
    """Let a user in, as a user or an operator. Returns the answer; None if it is no valid code."""
    typed, _, role_name = argument.partition(" ")
    code = read_code(typed)
    role = next(
        (role for role in _GRANTABLE if role == (role_name.strip().lower() or "user")), None
    )
    if code is None or role is None:
        return None
    texts: list[str] = []  # the transaction may run twice; the last text is the stored one

    def answer(result: Pairing | PairingRejected) -> InboxReply:
        texts.append(_result_text(result, role))
        return reply(texts[-1])

    await store.approve_pairing(code, role, by, answer=answer, welcome=_welcome)
    return texts[-1]


async def unpair(store: AccessStore, argument: str, reply: ReplyTo) -> str | None:
    """Remove a paired user. Returns the answer; None if the argument is incomplete."""
    platform, _, user_id = argument.partition(" ")
    user_id = user_id.strip()
    if not platform or not user_id:
        return None

    def text(removed: int) -> str:
        form = UNPAIRED if removed else NEVER_PAIRED
        return form.format(user_id=display_name(user_id), platform=display_name(platform))

    return text(await store.unpair(platform, user_id, answer=lambda n: reply(text(n))))


async def listing(store: AccessStore, now: float) -> str:
    """Return the pending requests and the paired users, one per line."""
    requests, paired = await store.pairings(), await store.principals()
    lines = [*_request_lines(requests, now), *_paired_lines(paired)]
    return "\n".join(lines) or NOBODY


def _request_lines(requests: Sequence[Pairing], now: float) -> list[str]:
    return [
        f"waiting for {_minutes(now - request.asked_at)}: {describe(request.source)}"
        for request in requests
    ]


def _paired_lines(paired: Sequence[Principal]) -> list[str]:
    return [f"{principal.role}: {describe(_source(principal))}" for principal in paired]


def _source(principal: Principal) -> Source:
    return Source(
        principal.platform,
        principal.account,
        user_id=principal.user_id,
        user_name=principal.name,
    )


def _result_text(result: Pairing | PairingRejected, role: Role) -> str:
    if isinstance(result, Pairing):
        return PAIRED.format(user=describe(result.source), role=role)
    if result.seconds:
        return LOCKED.format(minutes=_minutes(result.seconds))
    return WRONG_CODE.format(left="1 try" if result.left == 1 else f"{result.left} tries")


def _welcome(pairing: Pairing) -> list[Outbound]:
    return outbox_rows(pairing.source, pairing.session_key, "", WELCOME, "notice")


def describe(source: Source) -> str:
    """Return a sender in words, for an operator."""
    account = f"/{display_name(source.account)}" if source.account else ""
    name = source.user_name
    claimed = f" (calls itself {display_name(name)!r}, unverified)" if name else ""
    user_id = display_name(source.user_id or "")
    return f"{user_id} on {display_name(source.platform)}{account}{claimed}"


def _minutes(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return "1 minute" if minutes == 1 else f"{minutes} minutes"


def display_name(text: str) -> str:
    """Return untrusted text on one short line, without control characters."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shorten(printable, _NAME_LENGTH)
