"""Who may use the agents of a runtime: rules per platform.

A principal is (platform, account, user id), in the platform's own ids, compared exactly. The names
that users give themselves are never considered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import attrs

from hermes.config import RateLimit
from hermes.messages import Role, Source
from hermes.sanitize import scrub

CONSOLE = "console"
OPERATOR = "operator"
MAX_ID = 200

PrincipalId: TypeAlias = tuple[str, str, str]


def _ids(given: Iterable[str | int]) -> frozenset[str]:
    if isinstance(given, str):
        raise ValueError(f"ids must be given as a list, not as the string {given!r}")  # noqa: TRY004
    return frozenset(map(_id, given))


def _id(given: str | int) -> str:
    if given == "*":
        raise ValueError("'*' is not an id; set open = true to let everybody in")
    if type(given) is int:
        return str(given)
    if not isinstance(given, str) or not given or given != given.strip():
        raise ValueError(f"an id must be the platform's own, a string or a number: {given!r}")
    return given


@attrs.frozen(kw_only=True)
class PlatformRules:
    """Who may use the agents on one platform, by the platform's own ids. Nobody by default."""

    operators: frozenset[str] = attrs.field(default=frozenset(), converter=_ids)
    """User ids that may do everything, including letting others in."""
    users: frozenset[str] = attrs.field(default=frozenset(), converter=_ids)
    """User ids that may use the agent."""
    chats: frozenset[str] = attrs.field(default=frozenset(), converter=_ids)
    """Chat ids in which everybody is a guest."""
    open: bool = False
    """Whether everybody is a guest."""
    pairing: bool | None = None
    """Whether an unknown user gets a code with which an operator can let it in. None means yes,
    but does not count as a rule: a platform with nothing else is refused at start."""

    def role_of(self, source: Source) -> Role | None:
        """Return the configured role of a sender; pairing can only add to it."""
        user_id = user_of(source)
        if user_id in self.operators:
            return "operator"
        if user_id in self.users:
            return "user"
        return "guest" if self.open or source.chat_id in self.chats else None


def require_rules(
    platform: str, rules: PlatformRules | None, *, paired: bool = False
) -> PlatformRules:
    """Return the rules if a network platform may start with them, else raise `ValueError`.

    `paired` says that a user of this platform was paired before.
    """
    if platform == CONSOLE:
        raise ValueError(f"{CONSOLE!r} is the operator's own terminal, not a network platform")
    if rules is not None and (
        rules.open or rules.operators or rules.users or rules.chats or paired or rules.pairing
    ):
        return rules
    raise ValueError(
        f"{platform} would let nobody in: name users, operators or chats, or set pairing = true to "
        "let people in one by one, or open = true to let everybody in"
    )


@attrs.frozen(kw_only=True)
class AccessPolicy:
    """The access rules of a runtime, for each platform or for one (platform, account)."""

    rules: Mapping[str | tuple[str, str], PlatformRules] = attrs.Factory(dict)
    """Rules by platform, or by (platform, account)."""
    rates: RateLimit = attrs.Factory(RateLimit)
    """How many messages each principal may send."""
    default: PlatformRules | None = None
    """Rules of platforms that are not in `rules`; by default they are closed."""
    local: frozenset[str] = frozenset({CONSOLE})
    """Platforms inside this process, on which the user id "operator" is the operator."""

    def __attrs_post_init__(self) -> None:
        for name in self.rules:
            platform = name if isinstance(name, str) else name[0]
            if platform in self.local:
                raise ValueError(f"{platform} is local to the operator and takes no rules")

    @classmethod
    def everyone(cls) -> AccessPolicy:
        """Return the policy of a public bot: everybody is a guest on every platform."""
        return cls(default=PlatformRules(open=True))

    def rules_of(self, source: Source) -> PlatformRules | None:
        """Return the most specific rules for a source."""
        own = self.rules.get((source.platform, source.account)) or self.rules.get(source.platform)
        return own or self.default

    def is_local(self, source: Source) -> bool:
        """Whether the message comes from the operator's own terminal."""
        return source.platform in self.local and source.user_id == OPERATOR


def user_of(source: Source) -> str | None:
    """Return the user id, if it is usable: not empty, not too long, and valid Unicode."""
    user_id = source.user_id or ""
    usable = 0 < len(user_id) <= MAX_ID and user_id == scrub(user_id)
    return user_id if usable else None


def principal_of(source: Source) -> PrincipalId | None:
    """Return the principal that an operator could let in; None if the sender has no usable id."""
    user_id = user_of(source)
    place = source.platform, source.account
    if user_id is None or place != (scrub(source.platform), scrub(source.account)):
        return None
    return *place, user_id
