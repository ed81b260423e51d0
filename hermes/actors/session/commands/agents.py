"""Runs the commands about the agent that answers: `/model` and `/tools`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from hermes.actors.session.commands.calls import CommandCall, handles, reply, shorten, texts_of
from hermes.actors.session.state import SessionState
from hermes.messages import ConversationSettings, Source
from hermes.protocols import AgentChoice
from hermes.texts import Texts

MAX_PROBLEM = 200


class AgentFacts(TypedDict):
    """The fields of `Status` about the agent."""

    model: str | None
    cost: float


async def agent_facts(state: SessionState, session_id: str) -> AgentFacts:
    """Return which model answers a conversation, and what its session has cost."""
    store = state.store
    session = await store.get_session(session_id)
    source = await store.last_source(state.key) or Source()
    agent = await _current(state, source)
    return AgentFacts(
        model=None if agent is None else agent.model, cost=0.0 if session is None else session.cost
    )


async def _current(state: SessionState, source: Source) -> AgentChoice | None:
    if state.context.catalog is None:
        return None
    route = await state.store.get_route(state.key)
    settings = ConversationSettings.from_json(None if route is None else route.settings)
    return state.context.catalog.current(settings, source)


@handles("model")
async def _model(state: SessionState, call: CommandCall, wanted: str) -> str:
    texts, source = texts_of(state), call.row.inbound.source
    choices = [] if state.context.catalog is None else state.context.catalog.choices(source)
    if wanted and choices:
        return await _choose(state, call, wanted, choices)
    current = await _current(state, source)
    if current is None:
        return await reply(state, call, texts.model_fixed)
    lines = [texts.model.format(model=current.model)]
    if len(choices) > 1:
        lines += [*_listed(choices, texts), texts.how_to_choose]
    return await reply(state, call, "\n".join(lines))


async def _choose(
    state: SessionState, call: CommandCall, wanted: str, choices: Sequence[AgentChoice]
) -> str:
    """Switch the conversation to an agent, given by its name or by its model."""
    texts, name = texts_of(state), wanted.lower()
    found = [each for each in choices if each.name.lower() == name]
    found = found or [each for each in choices if each.model.lower() == name]
    if not found:
        lines = [texts.unknown_model.format(name=shorten(wanted)), *_listed(choices, texts)]
        return await reply(state, call, "\n".join(lines))
    settings = await state.store.configure(state.key, agent=found[0].name)
    state.settings = settings.to_json()
    text = texts.model_set.format(name=found[0].name, model=found[0].model)
    return await reply(state, call, text)


def _listed(choices: Sequence[AgentChoice], texts: Texts) -> list[str]:
    return [texts.model_choice.format(name=each.name, model=each.model) for each in choices]


@handles("tools")
async def _tools(state: SessionState, call: CommandCall, _: str) -> str:
    texts, current = texts_of(state), await _current(state, call.row.inbound.source)
    lines = [
        (texts.tool_line_approval if tool.approval else texts.tool_line).format(
            name=tool.name, summary=shorten(_clean(state, tool.summary))
        )
        for tool in (() if current is None else current.tools)
    ]
    servers = () if state.context.catalog is None else state.context.catalog.servers()
    for server in servers:
        line = texts.server_line if server.problem is None else texts.server_down
        problem = shorten(_clean(state, server.problem or ""), MAX_PROBLEM)
        lines.append(line.format(name=server.name, tools=server.tools, problem=problem))
    if allowed := await state.store.allowed_tools(state.key):
        lines.append(texts.tools_allowed.format(tools=", ".join(allowed)))
    return await reply(state, call, "\n".join(lines) or texts.no_tools)


def _clean(state: SessionState, text: str) -> str:
    """Return a text of a tool or server without secrets; before it is cut, which could hide one."""
    redact = state.context.redact
    return text if redact is None else redact(text)
