"""Which of the agents in the settings answers a conversation, and what it is built from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import asdict, replace

from hermes.messages import Source
from hermes.settings.schema import AgentTable, NamedAgentTable, Settings

DEFAULT_AGENT = "default"
"""The name of the agent in `[agent]`."""
_OF_PLACES = frozenset({"platforms", "chats"})


def agent_tables(settings: Settings) -> Mapping[str, AgentTable]:
    """Return every agent by name, the default one first; missing values are filled in."""
    named = {name: _complete(settings.agent, table) for name, table in settings.agents.items()}
    return {DEFAULT_AGENT: settings.agent, **named}


def _complete(default: AgentTable, table: NamedAgentTable) -> AgentTable:
    given = {
        name: value
        for name, value in asdict(table).items()
        if value is not None and name not in _OF_PLACES
    }
    if has_own_endpoint(default, table):
        default = replace(default, base_url=None, key=None, headers={}, parameters={},
                          alternate=False, attachments=None)  # fmt: skip
    return replace(default, **given)


def has_own_endpoint(default: AgentTable, table: NamedAgentTable) -> bool:
    """Return whether an agent has another endpoint than the default one, which has its own key."""
    other_kind = table.kind is not None and table.kind != default.kind
    return other_kind or (table.base_url is not None and table.base_url != default.base_url)


def agent_for(settings: Settings, source: Source, chosen: str | None = None) -> str:
    """Return the name of the agent that answers.

    That is the one that the conversation has `chosen`, if it still exists; else that of the chat;
    else that of the platform; else the default one.
    """
    if chosen == DEFAULT_AGENT or chosen in settings.agents:
        return str(chosen)
    chat = f"{source.platform}/{source.chat_id}"
    for name, table in settings.agents.items():
        if chat in table.chats:
            return name
    for name, table in settings.agents.items():
        if source.platform in table.platforms:
            return name
    return DEFAULT_AGENT


def find_agent(settings: Settings, wanted: str) -> str | None:
    """Return the agent that a user names, by its name or by its model; None if there is no such.

    A model that several agents have names none of them.
    """
    tables = agent_tables(settings)
    by_name = {name.casefold(): name for name in tables}
    if (name := by_name.get(wanted.casefold())) is not None:
        return name
    found = [name for name, table in tables.items() if table.model == wanted]
    return found[0] if len(found) == 1 else None


def places(settings: Settings) -> Iterator[tuple[str, str, int, str]]:
    """Yield the platforms and chats of all agents: name, key, position and value."""
    for name, table in settings.agents.items():
        for key, values in (("platforms", table.platforms), ("chats", table.chats)):
            for index, value in enumerate(values):
                yield name, key, index, value
