"""Access control: unknown senders are refused before anything of their message is stored."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import NoReturn, TypeAlias, cast

from msgspec.structs import replace

from hermes.actors.admission import pairing
from hermes.actors.admission.access import AccessPolicy, principal_of, user_of
from hermes.actors.admission.rate_limit import RateLimiter, TokenBucket
from hermes.actors.commands import COMMANDS, parse
from hermes.errors import NotAdmitted, RateLimited
from hermes.messages import (
    AdmissionHealth,
    AdmissionLevel,
    Inbound,
    InboxReply,
    Role,
    Source,
    may,
)
from hermes.outbound import outbox_rows
from hermes.protocols import Store
from hermes.sanitize import scrub
from hermes.session_keys import WEB_PLATFORM
from hermes.texts import ENGLISH, Texts

log: logging.Logger = logging.getLogger(__name__)


LISTED = 50
_Name: TypeAlias = tuple[str, str, str | tuple[str, str | None], bool]
"""The name of a bucket: platform, account, user or chat, and whether it is for /stop."""


class Admission:
    """Checks every inbound message, whichever way it arrived."""

    def __init__(
        self,
        store: Store,
        access: AccessPolicy,
        limiter: RateLimiter | None = None,
        texts: Texts = ENGLISH,
        delivers: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._store = store
        self._texts = texts
        self._access = access
        self._delivers = delivers
        """Whether an adapter sends notices to a platform. Otherwise the error is the notice."""
        self._limiter = RateLimiter(access.rates) if limiter is None else limiter
        self._refused = TokenBucket(0, 0)
        """Counts refused messages for the log, which reports them at most once a minute."""
        self._refusals = 0

    def health(self) -> AdmissionHealth:
        """Return the rate limits, and the senders that have the least left."""
        # /stop has buckets of its own, which say nothing more about a sender.
        named = [(left, cast(_Name, name)) for left, name in self._limiter.levels()]
        levels = [(left, name) for left, name in named if not name[-1]]
        return AdmissionHealth(
            per_minute=self._limiter.rates.per_minute,
            burst=self._limiter.rates.burst,
            senders=len(levels),
            exhausted=sum(left < 1 for left, _ in levels),
            refused=self._refusals,
            lowest=[_level(left, name) for left, name in levels[:LISTED]],
        )

    async def role_of(self, source: Source) -> Role | None:
        """Return the current role of a sender; None for an unknown one."""
        if self._access.is_local(source):
            return "operator"
        rules = self._access.rules_of(source)
        configured = None if rules is None else rules.role_of(source)
        if rules is None or configured in {"operator", "user"}:
            return configured
        return await self._paired_role(source) or configured

    async def _paired_role(self, source: Source) -> Role | None:
        principal = principal_of(source)
        return None if principal is None else await self._store.find_principal(*principal)

    async def require(self, source: Source) -> None:
        """Raise `NotAdmitted` if the sender of a file is unknown. It is told nothing."""
        if await self.role_of(source) is None:
            raise NotAdmitted(self._texts.unknown_sender)

    async def admit(self, inbound: Inbound) -> Role:
        """Return the role of the sender. Raises `NotAdmitted` if the message is refused."""
        source = inbound.source
        if self._access.is_local(source):
            return "operator"
        command = parse(inbound.text, source.platform) if inbound.command else None
        # /stop has a separate bucket: it must get through when messages do not.
        is_stop = command is not None and command.name == "stop"
        sender = user_of(source) or ("chat", source.chat_id)
        name: _Name = (source.platform, source.account, sender, is_stop)
        bucket = self._limiter.bucket(name, inbound.sent_at)
        if not self._limiter.take(bucket):
            await self._refuse_rate(inbound, bucket)
        role = await self.role_of(source)
        bucket.known = role is not None
        if role is None:
            await self._refuse_unknown(inbound)
        if command is not None:
            await self._check_role(inbound, command.name, role)
        return role

    async def _check_role(self, inbound: Inbound, command: str, role: Role) -> None:
        if not may(role, COMMANDS[command].role):
            text = self._texts.role_too_low.format(command=f"/{command}", role=role)
            await self._refuse(inbound, text)

    async def _refuse_rate(self, inbound: Inbound, bucket: TokenBucket) -> NoReturn:
        self._refusals += 1
        if not bucket.known:
            self._log_unknown(inbound.source)
            raise NotAdmitted(self._texts.unknown_sender)
        # The client of an API is told by its response.
        if inbound.request is None and self._limiter.may_notify(bucket):
            await self._notify(inbound, self._texts.too_fast)
        raise RateLimited(self._texts.too_fast)

    async def _refuse(self, inbound: Inbound, text: str) -> NoReturn:
        self._refusals += 1
        await self._notify(inbound, text)
        raise NotAdmitted(text)

    async def _notify(self, inbound: Inbound, text: str) -> None:
        if not self._delivers(inbound.source.platform):
            return
        outbox = outbox_rows(
            inbound.source, inbound.session_key, "", text, "notice", inbound.platform_message_id
        )
        await self._store.answer(
            InboxReply(session_key=inbound.session_key, inbox_ids=(), outbox=outbox)
        )

    def _log_unknown(self, source: Source) -> None:
        self._refused.left += 1
        if self._limiter.may_notify(self._refused):
            sender = pairing.describe(replace(source, user_name=None), ENGLISH)
            log.info("refused %d messages of unknown senders, last %s", self._refused.left, sender)
            self._refused.left = 0

    def offers_pairing(self, source: Source) -> bool:
        """Whether an unknown sender may get a code with which an operator can let it in."""
        rules = self._access.rules_of(source)
        return rules is not None and rules.pairing is not False

    async def _refuse_unknown(self, inbound: Inbound) -> NoReturn:
        """Offer a pairing code in a direct message, if the rules allow it; else stay silent."""
        source = inbound.source
        self._refusals += 1
        self._log_unknown(source)
        direct = source.chat_type == "dm" and source.platform != WEB_PLATFORM
        if direct and principal_of(source) is not None and self.offers_pairing(source):
            await self._offer_pairing(source, inbound.session_key)
        raise NotAdmitted(self._texts.unknown_sender)

    async def _offer_pairing(self, source: Source, session_key: str) -> None:
        code = pairing.new_code()
        name = None if source.user_name is None else pairing.display_name(source.user_name)
        source = replace(source, user_name=name)
        text = self._texts.pairing_offer.format(code=code)
        await self._store.request_pairing(
            source,
            session_key,
            code,
            salt=secrets.token_hex(16),
            say=outbox_rows(source, session_key, "", text, "notice"),
        )


def admission_of(
    store: Store, access: AccessPolicy | None, texts: Texts, delivers: Callable[[str], bool]
) -> Admission | None:
    """Return the access control of a runtime; None if its host decides itself."""
    return None if access is None else Admission(store, access, texts=texts, delivers=delivers)


def _level(left: float, name: _Name) -> AdmissionLevel:
    platform, account, sender, _ = name
    shown = sender if isinstance(sender, str) else sender[1] or ""
    return AdmissionLevel(platform=platform, account=account, sender=scrub(shown), left=left)
