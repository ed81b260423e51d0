"""Signing in to the web page."""

from __future__ import annotations

import secrets

from hermes.actors.admission.pairing import display_name, new_code
from hermes.actors.context import RuntimeContext
from hermes.actors.supervisor import Supervisor
from hermes.errors import NotAdmitted
from hermes.messages import Person, Source, Token
from hermes.sanitize import scrub
from hermes.session_keys import WEB_PLATFORM, session_key


class ApiSignIns:
    """One-time tokens with which people sign in, and people who ask for access with a code."""

    def __init__(self, context: RuntimeContext, supervisor: Supervisor) -> None:
        self._context = context
        self._supervisor = supervisor

    async def add_sign_in(self, digest: str, person: Person) -> None:
        """Store a one-time token, by its hash, with which a person can sign in for a minute."""
        await self._supervisor.store.add_sign_in(digest, person)

    async def find_sign_in(self, digest: str) -> Person | None:
        """Return who can sign in with a one-time token; None if it is not valid or was used."""
        return await self._supervisor.store.find_sign_in(digest)

    async def sign_in(self, digest: str, session: Token, session_digest: str) -> Token | None:
        """Use a one-time token: store a session of its person, with the hash of its secret.

        Of `session`, its id, its client and its expiry are used. Returns None if the token is not
        valid or was used.
        """
        return await self._supervisor.store.sign_in(digest, session, session_digest)

    async def request_access(self, user_id: str, name: str) -> str | None:
        """Return a code with which an operator can let in somebody who has no session.

        Returns None if too many people have asked recently. Raises `NotAdmitted` if nobody is let
        in by code.
        """
        source = Source(
            platform=WEB_PLATFORM, chat_id=user_id, user_id=user_id,
            user_name=display_name(scrub(name)),
        )  # fmt: skip
        admission = self._context.admission
        if admission is not None and not admission.offers_pairing(source):
            raise NotAdmitted("nobody is let in by a code here")
        code = new_code()
        stored = await self._supervisor.store.request_pairing(
            source, session_key(source), code, salt=secrets.token_hex(16)
        )
        return code if stored else None

    async def sign_in_paired(
        self, user_id: str, session: Token, session_digest: str
    ) -> Token | None:
        """Store the first session of a person whom an operator has let in with a code.

        Returns None if that has not happened yet.
        """
        store = self._supervisor.store
        if await store.find_principal(WEB_PLATFORM, "", user_id) is None:
            return None
        return await store.sign_in_paired(user_id, session, session_digest)

    async def asks_for_access(self, user_id: str) -> bool:
        """Whether somebody has asked for access and waits for an operator."""
        waiting = [each.source for each in await self._supervisor.store.pairings()]
        return any(each.platform == WEB_PLATFORM and each.user_id == user_id for each in waiting)

    async def clear_sign_ins(self) -> None:
        """Delete all one-time tokens, because none outlives the process that serves the page."""
        await self._supervisor.store.clear_sign_ins()
