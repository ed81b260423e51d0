"""The usual `accept` and `commit_turn` as a call of a function, once for a whole group commit.

Without it, each of them takes many statements, and each statement a round trip. Whatever is not
usual is left to the verbs: what cannot be known here, and what the functions answer with NULL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import attrs
import msgspec

from hermes.messages import (
    Accepted,
    Claim,
    Committed,
    Content,
    ExpiryPolicy,
    Head,
    Inbound,
    OutboxRow,
    Receipt,
    Reply,
    Route,
    TurnCommit,
    Usage,
)
from hermes.store.cluster.claims import Fenced
from hermes.store.conversations import codec, inbox, messages, routes, turns, usage
from hermes.store.recordings import rows as recordings
from hermes.store.transaction import KeyedWork, Transaction, Work

R = TypeVar("R")
Fields: TypeAlias = dict[str, Any]
_ENCODER: Final = msgspec.json.Encoder()
_REPLY_END: Final = '"messages":null,"calls":[]}'
_FIND_CONTENTS: Final = "SELECT digest, id FROM contents WHERE digest = ANY (CAST(? AS text[]))"


class _Unusual(Exception):
    """This request is one for its verb."""


@attrs.frozen
class _Request:
    """A request for a function, and what to do with the answer."""

    function: str
    session_key: str
    fields: Fields
    done: Callable[[str], object]
    """Returns the result of the verb for an answer."""
    digests: frozenset[str] = frozenset()
    """The contents that it refers to."""
    complete: Callable[[Mapping[str, int]], Fields] = attrs.field(default=lambda _: {})
    """Returns the fields that need the numbers of these contents, as far as they are stored."""


def in_order(tx: Transaction, batch: Iterable[Work[R]], *, places: bool) -> Iterator[Work[R]]:
    """Yield the requests of a batch in their order, to be run one after the other.

    What a function has done is yielded as work that returns the result. Requests are only done
    together if they are for different keys: then it does not matter which one is first. `places`
    says that a message goes to a node.
    """
    together: dict[str, tuple[Work[R], _Request]] = {}
    for work in batch:
        request = _usual(tx, work)
        if request is not None:
            request.fields["places"] = int(places)
        if request is None or request.session_key in together:
            yield from _run(tx, [*together.values()])
            together.clear()
        if request is None:
            yield work
        else:
            together[request.session_key] = work, request
    yield from _run(tx, [*together.values()])


def _usual(tx: Transaction, work: Work[Any]) -> _Request | None:
    """Return the request for a function; None if only the verb can do this."""
    claim, asked = (work.claim, work.work) if isinstance(work, Fenced) else (None, work)
    if not isinstance(asked, KeyedWork) or asked.call is None:
        return None
    function, args, kwargs = asked.call
    prepare = _VERBS.get(function)
    if prepare is None or (claim is not None and claim.session_key != asked.session_key):
        return None
    try:
        request = prepare(tx, *args, **kwargs)
    except (_Unusual, ValueError):
        return None  # the verb raises the error, if it is one
    if claim is not None:
        request.fields.update(owner=claim.node, fence=claim.fence)
    return request


def _run(tx: Transaction, together: Sequence[tuple[Work[R], _Request]]) -> Iterator[Work[R]]:
    requests = [request for _, request in together]
    answers: dict[int, Any] = {}
    known = _numbers(tx, requests)
    for function in (_COMMIT_TURN, _ACCEPT):
        encoded = {
            at: text
            for at, request in enumerate(requests)
            if request.function == function and (text := _encoded(request, known)) is not None
        }
        if encoded:
            found = tx.all(function, f"[{','.join(encoded.values())}]", tx.now)
            for at, (answer,) in zip(encoded, found, strict=True):
                if answer is not None:
                    answers[at] = requests[at].done(answer)
    for at, (work, _) in enumerate(together):
        yield partial(_return, answers[at]) if at in answers else work


def _return(result: R, _: Transaction) -> R:
    return result


def _encoded(request: _Request, known: Mapping[str, int]) -> str | None:
    try:
        text = _ENCODER.encode(request.fields | request.complete(known)).decode()
    except (_Unusual, UnicodeEncodeError):
        return None
    return None if "\\u0000" in text else text


def _numbers(tx: Transaction, requests: Sequence[_Request]) -> dict[str, int]:
    """Return the numbers of those contents that are stored."""
    digests = frozenset[str]().union(*(request.digests for request in requests))
    return dict(tx.all(_FIND_CONTENTS, f"{{{','.join(digests)}}}")) if digests else {}


def _finite(*values: float | None) -> None:
    if not all(value is None or math.isfinite(value) for value in values):
        raise _Unusual  # JSON has no such numbers


# accept

_RouteColumns: TypeAlias = tuple[
    str, str, int, str, str, str | None, str | None, str | None, float | None, float, str | None
]
_decode_accept = msgspec.json.Decoder(
    tuple[int, _RouteColumns, int, int, int, int, int, int | None, int]
).decode
_ACCEPT: Final = "SELECT hermes_accept(CAST(? AS json), ?)::text"


def _accept(
    tx: Transaction,
    inbound: Inbound,
    *,
    policy: ExpiryPolicy = turns.NEVER,
    max_queued: int = turns.MAX_QUEUED,
) -> _Request:
    if inbound.parts or inbound.request is not None or tx.db.refusal is not None:
        raise _Unusual
    inbound, body = turns.validated(tx, inbound)
    platform, account, event, scope = inbound.identity
    source, key = inbound.source, inbound.session_key
    expires_at = routes.next_expiry(policy, tx.now)
    _finite(expires_at)
    fields = {
        "key": key,
        "platform": platform,
        "account": account,
        "event": event,
        "scope": scope,
        "digest": turns.digest(tx, inbound),
        "body": body,
        "from_platform": source.platform,
        "chat_type": source.chat_type,
        "user_id": source.user_id,
        "expires_at": expires_at,
        "max_queued": max_queued,
        "delivers": int(tx.db.delivers),
        "node": tx.db.node,
    }

    def done(answer: str) -> Accepted:
        inbox_id, columns, count, revision, rewrites, waiting, previous, node, fence = (
            _decode_accept(answer)
        )
        route = Route(*columns)
        accepted = Accepted(
            Receipt(inbox_id, key, route.session_id, route.epoch, tx.now),
            Head(route.session_id, count, revision, rewrites),
            inbound,
            waiting=waiting,
            route=route,
            previous=previous,
            claim=None if node is None else Claim(key, node, fence),
        )
        tx.accepted.append(accepted)
        return accepted

    return _Request(_ACCEPT, key, fields, done)


# commit_turn

_decode_commit = msgspec.json.Decoder(tuple[int, int, int, int, list[int]]).decode
_COMMIT_TURN: Final = "SELECT hermes_commit_turn(CAST(? AS json), ?)::text"


def _commit_turn(tx: Transaction, turn: TurnCommit) -> _Request:
    if not turn.inbox_ids or not turn.stored or turn.rotated_to or turn.rewind_to is not None:
        raise _Unusual
    if any(row.parts for row in turn.rows) or any("files" in reply.body for reply in turn.outbox):
        raise _Unusual
    turn_id, session_id = min(turn.inbox_ids), turn.session_id
    rows = messages.values(turn.rows, tx.now)
    bodies = [codec.encode_json(inbox.addressed(reply, session_id).body) for reply in turn.outbox]
    expires_at = None if turn.policy is None else routes.next_expiry(turn.policy, tx.now)
    _finite(expires_at, *(row[2] for row in rows), *(used.cost for used in turn.usage))
    fields: Fields = {
        "key": turn.session_key,
        "session_id": session_id,
        "epoch": turn.epoch,
        "revision": turn.revision,
        "inbox_ids": turn.inbox_ids,
        "turn_id": turn_id,
        "messages": [dict(zip(_ROW, (n, *row), strict=True)) for n, row in enumerate(rows)],
        "row_count": len(rows),
        "tool_calls": codec.tool_calls_in(turn.rows),
        "outbox": [
            {"lane": reply.lane, "body": body}
            for reply, body in zip(turn.outbox, bodies, strict=True)
        ],
        "next_ids": turn.next_inbox_ids,
        "expires_at": expires_at,
        **_reply_fields(turn.reply, session_id),
    }
    if turn.usage:
        fields["usage"] = [_usage_fields(used) for used in turn.usage]

    def done(answer: str) -> Committed:
        first, count, revision, rewrites, sent = _decode_commit(answer)
        added = codec.to_messages([(n, *row) for n, row in enumerate(rows, first)])
        for outbox_id, reply, body in zip(sent, turn.outbox, bodies, strict=True):
            identity = (outbox_id, turn.session_key, turn_id, reply.lane)
            decoded = msgspec.json.decode(body)
            tx.outbox.append(OutboxRow(*identity, decoded, "pending", 0, recovered=False))
        tx.unindexed = tx.unindexed or bool(rows)
        answered = turn.reply and turn.reply.stored_in(session_id, added)
        head = Head(session_id, count, revision, rewrites)
        return Committed(head, turn.epoch, rows=added, reply=answered)

    complete = partial(_record_fields, turn)
    return _Request(_COMMIT_TURN, turn.session_key, fields, done, _digests(turn), complete)


_ROW: Final = ("n", "role", "content", "created_at", "platform_id", "extra")


def _reply_fields(reply: Reply | None, session_id: str) -> Fields:
    """Return the reply in two parts: the ids of its rows come between."""
    if reply is None:
        return {}
    calls = codec.encode_json(reply.calls)
    text = codec.encode_json(msgspec.structs.replace(reply.stored_in(session_id, ()), calls=()))
    if not text.endswith(_REPLY_END):
        raise _Unusual
    return {
        "answered": reply.turn_id,
        "reply": text.removesuffix(_REPLY_END),
        "reply_end": f',"calls":{calls}}}',
    }


def _usage_fields(used: Usage) -> Fields:
    return {
        "purpose": used.purpose,
        "model": used.model,
        "provider": used.provider,
        "input": used.input_tokens,
        "output": used.output_tokens,
        "cache_read": used.cache_read_tokens,
        "cache_write": used.cache_write_tokens,
        "reasoning": used.reasoning_tokens,
        "cost": used.cost,
        "auxiliary": int(used.purpose in usage.AUXILIARY),
    }


def _digests(turn: TurnCommit) -> frozenset[str]:
    """Return the contents that what is recorded of a turn refers to."""
    calls = () if turn.record is None else turn.record.calls
    contents = [
        c for call in calls for c in (call.settings, call.tools, call.system, call.injected)
    ]
    return frozenset(content.digest for content in contents if content is not None)


def _record_fields(turn: TurnCommit, known: Mapping[str, int]) -> Fields:
    if turn.record is None:
        return {}
    _finite(turn.record.started_at)
    contents = _Known(known, turn.session_id)
    details = recordings.encode(turn.record, contents)
    return {
        "contents": contents.used,
        "started_at": turn.record.started_at,
        "status": turn.record.status,
        "details": details,
    }


class _Known:
    """The contents that are stored already; see `recordings.Contents`."""

    def __init__(self, known: Mapping[str, int], session_id: str) -> None:
        self._known = known
        self._session_id = session_id
        self.used: list[int] = []

    def required(self, content: Content) -> int:
        if content.digest not in self._known:
            raise _Unusual
        self.used.append(self._known[content.digest])
        return self.used[-1]

    def number_of(self, session_id: str) -> int:
        if session_id != self._session_id:
            raise _Unusual
        return 0


_VERBS: Final[Mapping[Callable[..., Any], Callable[..., _Request]]] = {
    turns.accept: _accept,
    turns.commit_turn: _commit_turn,
}
