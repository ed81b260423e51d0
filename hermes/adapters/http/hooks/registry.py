"""The configured webhooks. Each is a principal of its own: `hook:NAME` on the platform "hook"."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from hermes.actors.admission.access import PlatformRules
from hermes.adapters.http.hooks.signatures import Scheme, key_of, scheme_of
from hermes.messages import Source
from hermes.session_keys import chat_of, session_key
from hermes.settings.http import HookTable, HttpConfig
from hermes.settings.references import read_secret

PLATFORM = "hook"
KEY_PREFIX = "agent:"
"""How session keys begin; a conversation of another form is a name."""


@attrs.frozen(kw_only=True)
class Hook:
    """A webhook."""

    name: str
    table: HookTable
    scheme: Scheme
    key: bytes = attrs.field(repr=False)
    """The key of its signatures."""

    @property
    def source(self) -> Source:
        """Where its messages come from."""
        return Source(
            platform=PLATFORM,
            account=self.name,
            chat_id=self.name,
            thread_id=None if self._is_key else self.table.conversation,
            user_id=user_id(self.name),
        )

    @property
    def session_key(self) -> str:
        """The conversation in which its turns run."""
        conversation = self.table.conversation
        return conversation if self._is_key and conversation else session_key(self.source)

    @property
    def chat(self) -> Source | None:
        """The chat to which its replies are sent; None if they are in the conversation only."""
        return None if self.table.deliver is None else chat_of(self.table.deliver)

    @property
    def _is_key(self) -> bool:
        return (self.table.conversation or "").startswith(KEY_PREFIX)


def user_id(name: str) -> str:
    """Return the user id of a webhook."""
    return f"{PLATFORM}:{name}"


def open_hooks(config: HttpConfig) -> Mapping[str, Hook]:
    """Return the webhooks by name. Raises `ValueError` if a secret is missing or not valid."""
    hooks = {}
    for name, table in config.hooks.items():
        try:
            key = key_of(table, read_secret(table.secret).reveal() or "")
        except ValueError as error:
            raise ValueError(f"the webhook {name!r} cannot be served: {error}") from None
        hooks[name] = Hook(name=name, table=table, scheme=scheme_of(table), key=key)
    return hooks


def hook_rules(config: HttpConfig) -> dict[str | tuple[str, str], PlatformRules]:
    """Return the access rules that let the webhooks in, and nobody else on their platform."""
    return {
        (PLATFORM, name): PlatformRules(users=[user_id(name)], pairing=False)
        for name in config.hooks
    }
