"""Who may speak with an agent: everybody else is turned away before anything of him is stored.

A principal is (platform, account, user id), by the platform's own ids and to the letter. What
somebody calls himself is never looked at.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from typing import NoReturn, TypeAlias

import attrs
from msgspec.structs import replace

from hermes.actors.admission import pairing
from hermes.actors.admission.rate_limit import RateLimit as RateLimit, RateLimiter, TokenBucket
from hermes.actors.context import said_to
from hermes.actors.session.commands import COMMANDS, command_name
from hermes.errors import NotAdmitted
from hermes.messages import Inbound, InboxReply, Role, Source, may
from hermes.protocols import Store

log = logging.getLogger(__name__)

CONSOLE = "console"
OPERATOR = "operator"
MAX_ID = 200
STRANGER = "I do not know you, so I did not take your message."
ABOVE = "{command} is not for a {role}; /help shows what you can do."
TOO_MUCH = "That was too much at once, so I did not take all of it. Wait a moment and go on."

Who: TypeAlias = tuple[str, str, str]


def _ids(given: Iterable[str | int]) -> frozenset[str]:
    if isinstance(given, str):
        raise ValueError(f"ids come as a list, not as the text {given!r}")  # noqa: TRY004
    return frozenset(map(_id, given))


def _id(given: str | int) -> str:
    if given == "*":
        raise ValueError("there is no '*': to let everybody in, say open = true")
    if type(given) is int:
        return str(given)
    if not isinstance(given, str) or not given or given != given.strip():
        raise ValueError(f"an id is the platform's own, as a text or a number: {given!r}")
    return given


@attrs.frozen(kw_only=True)
class PlatformRules:
    """Who may speak on a platform, by its own ids; nobody, where nothing is said.

    In a chat that is named, and where it is `open`, everybody is a guest. Without `pairing` a
    stranger hears nothing; with it he gets a code that an operator can let him in by.
    """

    operators: frozenset[str] = attrs.field(default=frozenset(), converter=_ids)
    users: frozenset[str] = attrs.field(default=frozenset(), converter=_ids)
    chats: frozenset[str] = attrs.field(default=frozenset(), converter=_ids)
    open: bool = False
    pairing: bool | None = None
    """None is on as well, and not a reason to start without an allowlist."""

    def role_of(self, source: Source) -> Role | None:
        """The role that is written here; pairing can only add to it."""
        user_id = user_of(source)
        if user_id is not None and user_id in self.operators:
            return "operator"
        if user_id is not None and user_id in self.users:
            return "user"
        return "guest" if self.open or source.chat_id in self.chats else None


def require_rules(
    platform: str, rules: PlatformRules | None, *, paired: bool = False
) -> PlatformRules:
    """The rules, if a platform on a network may start with them; `paired`: somebody was let in."""
    if platform == CONSOLE:
        raise ValueError(f"{CONSOLE!r} is the operator's own terminal, and no name for a network")
    if rules is not None and (
        rules.open or rules.operators or rules.users or rules.chats or paired or rules.pairing
    ):
        return rules
    raise ValueError(
        f"{platform} would let nobody in: name users, operators or chats, or say pairing = true to "
        "let people in one by one, or open = true to let in everybody"
    )


@attrs.frozen(kw_only=True)
class AccessPolicy:
    """What an admission goes by: rules for each platform, or for one (platform, account).

    On a `local` platform, which is this very process's, the user "operator" is one.
    """

    rules: Mapping[str | tuple[str, str], PlatformRules] = attrs.Factory(dict)
    rates: RateLimit = attrs.Factory(RateLimit)
    local: frozenset[str] = frozenset({CONSOLE})

    def __attrs_post_init__(self) -> None:
        for name in self.rules:
            platform = name if isinstance(name, str) else name[0]
            if platform in self.local:
                raise ValueError(f"{platform} is the operator's own, and needs no rules")

    def rules_of(self, source: Source) -> PlatformRules | None:
        """The closest rules."""
        named = self.rules.get((source.platform, source.account))
        return named or self.rules.get(source.platform)

    def is_local(self, source: Source) -> bool:
        """Whether it comes from the operator's own terminal."""
        return source.platform in self.local and source.user_id == OPERATOR


class Admission:
    """The door: every message comes through `admit`, whichever way it came."""

    def __init__(
        self, store: Store, access: AccessPolicy, buckets: RateLimiter | None = None
    ) -> None:
        self._store = store
        self._access = access
        self._buckets = RateLimiter(access.rates) if buckets is None else buckets
        self._strangers = TokenBucket(0, 0)
        """For the log: how many were turned away is told once a minute, however many they are."""

    async def role_of(self, source: Source) -> Role | None:
        """What somebody may do now; None for a stranger."""
        if self._access.is_local(source):
            return "operator"
        rules = self._access.rules_of(source)
        if rules is None:
            return None
        named, who = rules.role_of(source), principal_of(source)
        if named in {"operator", "user"} or who is None:
            return named
        return await self._store.find_principal(*who) or named

    async def admit(self, inbound: Inbound) -> Role:
        """The role of who wrote; `NotAdmitted` where nothing of it is to be taken."""
        source = inbound.source
        if self._access.is_local(source):
            return "operator"
        require_texts(source)
        command = command_name(inbound)
        bucket = self._bucket(inbound, stops=command == "stop")
        if not self._buckets.take(bucket):
            await self._slow_down(inbound, bucket)
        role = await self.role_of(source)
        bucket.known = role is not None
        if role is None:
            await self._turn_away(inbound)
        if command is not None and not may(role, COMMANDS[command].role):
            await self._refuse(inbound, ABOVE.format(command=f"/{command}", role=role))
        return role

    def _bucket(self, inbound: Inbound, *, stops: bool) -> TokenBucket:
        source = inbound.source
        # A stop has a bucket of its own: it must get through where messages do not.
        place = None if user_of(source) else source.chat_id
        name = (source.platform, source.account, user_of(source), place, stops)
        return self._buckets.of(name, inbound.sent_at)

    async def _slow_down(self, inbound: Inbound, bucket: TokenBucket) -> NoReturn:
        if not bucket.known:
            self._note_stranger(inbound.source)
            raise NotAdmitted(STRANGER)
        if self._buckets.may_tell(bucket):
            await self._refuse(inbound, TOO_MUCH)
        raise NotAdmitted(TOO_MUCH)

    async def _refuse(self, inbound: Inbound, text: str) -> NoReturn:
        said = said_to(
            inbound.source, inbound.session_key, "", text, "notice", inbound.platform_message_id
        )
        answer = InboxReply(session_key=inbound.session_key, inbox_ids=(), outbox=said)
        await self._store.answer(answer)
        raise NotAdmitted(text)

    def _note_stranger(self, source: Source) -> None:
        self._strangers.left += 1
        if self._buckets.may_tell(self._strangers):
            who = pairing.describe(replace(source, user_name=None))
            log.info("turned away: %d messages, the latest of %s", self._strangers.left, who)
            self._strangers.left = 0

    async def _turn_away(self, inbound: Inbound) -> NoReturn:
        """Give a stranger who writes directly a code, where that is allowed; else say nothing."""
        source = inbound.source
        self._note_stranger(source)
        rules = self._access.rules_of(source)
        offered = rules is not None and rules.pairing is not False
        if offered and source.chat_type == "dm" and principal_of(source) is not None:
            await self._offer(replace(source, user_name=_named(source)), inbound.session_key)
        raise NotAdmitted(STRANGER)

    async def _offer(self, source: Source, session_key: str) -> None:
        code = pairing.new_code()
        text = pairing.STRANGER.format(code=code)
        said = said_to(source, session_key, "", text, "notice")
        await self._store.request_pairing(
            source, session_key, code, salt=secrets.token_hex(16), say=said
        )


def require_texts(source: Source) -> None:
    """Refuse ids that are no texts: 42 and "42" would be two."""
    ids = (source.platform, source.account, source.chat_id or "", source.user_id or "")
    if not all(isinstance(each, str) for each in ids):
        raise ValueError(f"the ids of a source are texts: {source!r}")


def user_of(source: Source) -> str | None:
    """The user's id, if it can be one: not empty, not endless, and a text that can be written."""
    user_id = source.user_id
    if not user_id or len(user_id) > MAX_ID or not _is_whole(user_id):
        return None
    return user_id


def principal_of(source: Source) -> Who | None:
    """Who wrote, as an operator could let him in; None for nobody in particular."""
    user_id = user_of(source)
    if user_id is None or not _is_whole(source.platform) or not _is_whole(source.account):
        return None
    return source.platform, source.account, user_id


def _is_whole(text: str) -> bool:
    return text.isascii() or text == text.encode(errors="replace").decode()


def _named(source: Source) -> str | None:
    return None if source.user_name is None else pairing.shown(source.user_name)
