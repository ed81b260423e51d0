"""`/pair` and `/unpair`: an operator lets somebody in who waits with a code, or takes it back.

The code says who is meant, and is no secret that opens anything: only an operator's command does.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence

from hermes.actors.context import said_to
from hermes.messages import InboxReply, Outbound, Pairing, PairingRejected, Principal, Role, Source
from hermes.protocols import Principals

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Without I, L and O, which are read as 1 and 0, and without U: 5 bits each."""
LENGTH = 8
_TYPED = re.compile(rf"([{ALPHABET}]{{4}})[-–—]?([{ALPHABET}]{{4}})", re.ASCII)
_READ_AS = str.maketrans("ILO", "110")
_NAME = 60
_GRANTED: tuple[Role, ...] = ("user", "operator")

STRANGER = "I do not know you yet. Ask the operator to run this within the hour: /pair {code}"
WELCOME = "You have been let in. Say something, or see /help."
PAIRED = "{who} may speak with me now, as {role}."
WRONG = "Nobody waits with this code, which is good for an hour and once; {left} left."
LOCKED = "There were too many wrong codes; try again in {minutes}."
NOBODY = "Nobody waits to be let in, and nobody was."
UNPAIRED = "{user_id} on {platform} is not known to me any more."
NEVER_PAIRED = "There is nobody called {user_id} on {platform} whom I was told to let in."
NO_DOOR = "The program around me decides who speaks here, so there is nobody to let in."
NOT_OPERATOR = "That is for an operator, and you are none any more."

ReplyTo = Callable[[str], InboxReply]


def new_code() -> str:
    """A code of 40 bits, as it is shown."""
    letters = "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))
    return f"{letters[:4]}-{letters[4:]}"


def read_code(typed: str) -> str | None:
    """The code as it was shown, however it was typed; None where it cannot be one."""
    found = _TYPED.fullmatch(typed.upper().translate(_READ_AS))
    return None if found is None else f"{found[1]}-{found[2]}"


async def pair(records: Principals, by: Source, argument: str, answer: ReplyTo) -> str | None:
    """Let somebody in, as a user or as an operator; None where the command was not understood."""
    typed, _, named = argument.partition(" ")
    code = read_code(typed)
    role = next((each for each in _GRANTED if each == (named.strip().lower() or "user")), None)
    if code is None or role is None:
        return None
    said: list[str] = []  # the transaction may run twice; what it said last is on disk

    def answered(verdict: Pairing | PairingRejected) -> InboxReply:
        said.append(_verdict(verdict, role))
        return answer(said[-1])

    await records.approve_pairing(code, role, by, answer=answered, welcome=_welcome)
    return said[-1]


async def unpair(records: Principals, argument: str, answer: ReplyTo) -> str | None:
    """Take back what somebody was let in by; None where the command was not understood."""
    platform, _, user_id = argument.partition(" ")
    user_id = user_id.strip()
    if not platform or not user_id:
        return None

    def text(number: int) -> str:
        form = UNPAIRED if number else NEVER_PAIRED
        return form.format(user_id=shown(user_id), platform=shown(platform))

    return text(await records.unpair(platform, user_id, answer=lambda n: answer(text(n))))


async def listing(records: Principals, now: float) -> str:
    """Who waits, and who was let in."""
    waiting, paired = await records.pairings(), await records.principals()
    lines = [*_waiting(waiting, now), *_paired(paired)]
    return "\n".join(lines) or NOBODY


def _waiting(found: Sequence[Pairing], now: float) -> list[str]:
    return [
        f"waits since {_minutes(now - each.asked_at)}: {describe(each.source)}" for each in found
    ]


def _paired(found: Sequence[Principal]) -> list[str]:
    return [f"{each.role}: {describe(_source(each))}" for each in found]


def _source(principal: Principal) -> Source:
    who = principal.user_id
    return Source(principal.platform, principal.account, user_id=who, user_name=principal.name)


def _verdict(verdict: Pairing | PairingRejected, role: Role) -> str:
    if isinstance(verdict, Pairing):
        return PAIRED.format(who=describe(verdict.source), role=role)
    if verdict.seconds:
        return LOCKED.format(minutes=_minutes(verdict.seconds))
    return WRONG.format(left="1 try is" if verdict.left == 1 else f"{verdict.left} tries are")


def _welcome(pairing: Pairing) -> list[Outbound]:
    return said_to(pairing.source, pairing.session_key, "", WELCOME, "notice")


def describe(source: Source) -> str:
    """Somebody, for an operator to read."""
    account = f"/{shown(source.account)}" if source.account else ""
    name = source.user_name
    called = f" (says to be {shown(name)!r}, unverified)" if name else ""
    return f"{shown(source.user_id or '')} on {shown(source.platform)}{account}{called}"


def _minutes(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return "1 minute" if minutes == 1 else f"{minutes} minutes"


def shown(text: str) -> str:
    """A stranger's text as a terminal may show it: short, on one line, without control signs."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    return clean if len(clean) <= _NAME else clean[: _NAME - 1] + "…"
