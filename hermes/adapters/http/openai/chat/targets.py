"""The conversation of a chat completion: none, a named one, or a branch of it.

The transcript of a named conversation is the truth. A request whose history is that of the
conversation, or of one of its branches, continues it. Any other history opens a branch from the
last message that both have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import attrs

from hermes.adapters.http.credentials import new_id
from hermes.adapters.http.endpoints import Call
from hermes.adapters.http.errors import ApiError
from hermes.adapters.http.openai.chat.histories import Match, Run, match, sessions_of
from hermes.adapters.http.openai.chat.messages import as_rows, runs_of_client, runs_of_rows
from hermes.adapters.http.openai.chat.requests import ChatRequest
from hermes.messages import JsonObject, Message, Opening, Source, WaitingMessage
from hermes.session_keys import EPHEMERAL

TASK_HEADER = "x-hermes-task"
"""What a front end asks for besides the conversation, such as a title: it belongs to none."""
PARENT_HEADER = "x-hermes-parent"
"""The idempotency key of the request whose answer precedes the new message."""
MAX_NAME = 500
MAX_PLAIN = 200
"""Bytes of a name that are part of the session key; a longer one is hashed."""
BRANCH = "\x1f"
"""Separates the name of a conversation from that of a branch; no name has it."""
MAX_BRANCHES = 30


@attrs.frozen
class Target:
    """Where the message of a request goes."""

    key: str
    source: Source
    stored: bool
    follows: int | None = None
    """The last message that the conversation must have."""
    opening: Opening | None = None
    """How the conversation begins, if it is a new one."""
    history: tuple[Message, ...] = ()
    """The messages that it begins with."""


def named_conversation(call: Call, request: ChatRequest) -> str | None:
    """Return the name that a client gives its conversation; None if it gives none.

    Raises `ApiError` if the name is not valid.
    """
    headers, config = call.request.headers, call.services.config
    if headers.get(TASK_HEADER):
        return None
    names = [headers.get(name) for name in config.conversation_headers]
    names += [request.conversation, request.user if config.conversation_by_user else None]
    name = next(filter(None, names), None)
    if name is not None and (len(name) > MAX_NAME or not name.isprintable()):
        text = f"The name of a conversation has 1 to {MAX_NAME} printable characters."
        raise ApiError(400, text, code="invalid_value", param="conversation")
    return name


def ephemeral_target(call: Call) -> Target:
    """Return the target of a request without a conversation."""
    conversation = new_id(EPHEMERAL)
    return Target(call.caller.key(conversation), call.caller.source(conversation), stored=False)


def conversation_of(name: str) -> str:
    """Return the conversation with a name that a client chose."""
    if len(name.encode()) > MAX_PLAIN:
        return f"long:{hashlib.sha256(name.encode()).hexdigest()}"
    return f"name:{name}"


async def stored_target(
    call: Call, name: str, messages: Sequence[JsonObject], agent: str | None
) -> Target:
    """Return the conversation or branch that has this history, or else a new branch.

    Raises `ApiError`. The message is refused if another one comes first.
    """
    conversation = conversation_of(name)
    history = await runs_of_client(call, messages)
    best = _Candidate(call.caller.key(conversation))
    for key in await _keys(call, conversation):
        for found in await _candidates(call, key, history):
            if found.match.exact and not found.busy:
                return _target(call, conversation, key, found.match.last)
            if found.is_better(best):
                best = found
    if best.match == _NOTHING and not best.busy and best.key == call.caller.key(conversation):
        new = conversation  # it has no messages yet
    else:
        new = f"{conversation}{BRANCH}{new_id('branch')}"
    key, source = call.caller.key(new), call.caller.source(new)
    done = _messages_in(messages, best.match.common)
    rows = await as_rows(call, key, messages[done:], agent)
    if not rows and new == conversation:
        return _target(call, new, key, 0)
    opening = Opening(
        is_new=True, of=None if new == conversation else best.key, upto=best.match.upto
    )
    return Target(key, source, stored=True, opening=opening, history=tuple(rows))


_NOTHING = Match(0, 0, exact=False)


@attrs.frozen
class _Candidate:
    """A session that has a part of the history."""

    key: str
    match: Match = _NOTHING
    busy: bool = False
    """Whether a message waits or a turn runs."""

    def is_better(self, other: _Candidate) -> bool:
        """Whether this one has more of the history, or any messages at all."""
        mine = (self.match.common, self.match.last > 0 or self.busy)
        return mine > (other.match.common, other.match.last > 0 or other.busy)


def _target(call: Call, conversation: str, key: str, follows: int) -> Target:
    return Target(key, call.caller.source(conversation), stored=True, follows=follows)


async def _keys(call: Call, conversation: str) -> list[str]:
    """Return the keys of a conversation and its branches; that of the parent message first."""
    main, api = call.caller.key(conversation), call.runtime.api
    prefix = call.caller.key(f"{conversation}{BRANCH}")
    keys = [main, *await api.list_branches(prefix, MAX_BRANCHES)]
    parent = call.request.headers.get(PARENT_HEADER)
    if parent:
        found = await api.find_response(call.caller.id, parent)
        keys.sort(key=lambda key: found is None or key != found.session_key)
    return keys


async def _candidates(call: Call, key: str, history: Sequence[Run]) -> list[_Candidate]:
    """Return how much of a history the session of a key has, and those before a compression."""
    rows = await call.runtime.conversation(key).history(lineage=True)
    stored = [row for row in rows if not isinstance(row, WaitingMessage)]
    matches = [
        match(history, await runs_of_rows(call, kept), summarized=summarized)
        for summarized, kept in sessions_of(stored)
    ]
    # Only the latest session is continued. What its summary replaces is in the first one.
    whole = len(matches) == 1 or (len(matches) > 1 and matches[-1].whole)
    found = [
        attrs.evolve(each, exact=each.exact and whole and not number)
        for number, each in enumerate(matches)
    ]
    busy = len(stored) < len(rows)
    return [_Candidate(key, each, busy) for each in found] or [_Candidate(key, busy=busy)]


def _messages_in(messages: Sequence[JsonObject], runs: int) -> int:
    """Return how many messages the first runs have."""
    changes = 0
    for index, message in enumerate(messages):
        before = messages[index - 1]["role"] == "user" if index else None
        changes += (message["role"] == "user") != before
        if changes > runs:
            return index
    return len(messages)
