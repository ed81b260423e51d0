"""Bearer tokens and web sessions: who calls, and which conversations belong to the caller."""

from __future__ import annotations

import hashlib
import secrets
from fnmatch import fnmatchcase

import attrs

from hermes.messages import Source, Token
from hermes.session_keys import API_PLATFORM, WEB_PLATFORM, session_key

PLATFORM = API_PLATFORM
PREFIX = "hms_"
SESSION_PREFIX = "hmw_"
KEYS = f"agent:main:{PLATFORM}:"
"""How the session keys of API clients begin."""


def new_secret(prefix: str = PREFIX) -> str:
    """Return a new secret, of 256 random bits."""
    return prefix + secrets.token_urlsafe(32)


def new_id(prefix: str) -> str:
    """Return a new random id of 128 bits, such as "resp_…"."""
    return f"{prefix}_{secrets.token_hex(16)}"


def digest_of(secret: str) -> str:
    """Return the hash by which a token is found. Its 256 random bits need no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


@attrs.frozen
class Caller:
    """The holder of a token, or somebody who is signed in to the web page."""

    token: Token

    @property
    def id(self) -> str:
        """The id of the token or the session."""
        return self.token.id

    @property
    def user_id(self) -> str:
        """The id of the principal: that of the token, or of the person who is signed in."""
        return self.token.namespace if self.token.platform == WEB_PLATFORM else self.id

    def has_role(self, role: str) -> bool:
        """Whether the token has a role; "operator" includes "user"."""
        roles = self.token.roles
        return role in roles or (role == "user" and "operator" in roles)

    def source(self, conversation: str) -> Source:
        """Return the source of messages in a conversation of this caller."""
        return Source(
            platform=self.token.platform,
            account=self.id,
            chat_id=self.token.namespace,
            thread_id=conversation,
            user_id=self.user_id,
            user_name=self.token.name,
        )

    def key(self, conversation: str) -> str:
        """Return the session key of a conversation, which lies inside the token's namespace."""
        return session_key(self.source(conversation))

    def owns(self, key: str) -> bool:
        """Whether a session key lies inside the namespace, or matches a pattern of the token."""
        # A namespace has no colon here: it is percent-encoded in a key.
        token = self.token
        namespace = session_key(Source(platform=token.platform, chat_id=token.namespace))
        inside = key.startswith(f"{namespace}:")
        return inside or any(fnmatchcase(key, pattern) for pattern in token.keys)
