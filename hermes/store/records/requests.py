"""Requests of API clients that return something: results of tools, and decisions.

They are accepted in one transaction with their message, so that each counts once, and never without
the turn that it belongs to.
"""

from __future__ import annotations

from msgspec.structs import replace

from hermes.errors import HistoryChanged, RequestRefused
from hermes.messages import (
    Accepted,
    ApiRequest,
    Approval,
    ApprovalDecision,
    ExpiryPolicy,
    Inbound,
    JsonObject,
    Opening,
    ToolCall,
    ToolOutput,
)
from hermes.store.attachments import rows as attachments
from hermes.store.conversations import inbox, messages, routes, turns
from hermes.store.records import branches, settings, tokens, tool_records
from hermes.store.transaction import Transaction
from hermes.transcript.calls import open_calls
from hermes.transcript.decisions import message_about

MAX_RESULTS = 500
"""How many rows at the end of a transcript are searched for calls that wait."""
NOTHING = Opening()
_STATES = {
    "approved": "was approved before",
    "denied": "was denied before",
    "used": "was approved before, and the call was made",
    "expired": "has expired",
}


def accept_request(
    tx: Transaction,
    inbound: Inbound,
    *,
    policy: ExpiryPolicy = turns.NEVER,
    max_queued: int = turns.MAX_QUEUED,
) -> Accepted:
    """Accept the message of an API client, with the results and decisions that it returns.

    Its conversation is opened, and the earlier messages that it brings are added. Raises
    `RequestRefused`, and stores nothing, if a result is not that of a call which waits, or if an
    approval is not pending, and `HistoryChanged` if the conversation has other messages than the
    client expects, or if earlier ones cannot be added because a turn runs or waits. Raises
    `InvalidToken` if the token of the request is not valid any more. Otherwise as `accept`.
    """
    request, key = inbound.request, inbound.session_key
    if request is not None:
        tokens.require_valid(tx, request.credential)
        if _does_more(request) and tx.one(turns.FIND_EVENT, *inbound.identity, key) is None:
            inbound = replace(inbound, request=_performed(tx, inbound, request))
    return turns.accept(tx, inbound, policy=policy, max_queued=max_queued)


def _does_more(request: ApiRequest) -> bool:
    """Whether a request has more than its message."""
    more = request.outputs or request.decisions or request.history or request.opening
    return bool(more) or request.follows is not None


def _performed(tx: Transaction, inbound: Inbound, request: ApiRequest) -> ApiRequest:
    """Do what a request asks for besides its message; returns it as it is stored."""
    key = inbound.session_key
    if request.follows is not None:
        branches.require_last(tx, key, request.follows)
    if request.stored and (request.history or request.opening is not None):
        request = _opened(tx, inbound, request)
    outputs = _checked(tx, inbound, request) if request.outputs else ()
    decisions = tuple(_decided(tx, key, decision) for decision in request.decisions)
    return replace(request, outputs=outputs, decisions=decisions)


def _opened(tx: Transaction, inbound: Inbound, request: ApiRequest) -> ApiRequest:
    """Open the conversation of a request, with its earlier messages; return the request without."""
    key, source = inbound.session_key, inbound.source
    opening, history = request.opening or NOTHING, request.history
    if opening.is_new:
        branches.open_branch(tx, key, source, history, of=opening.of, upto=opening.upto)
    elif history:
        if inbox.count_open(tx, key):
            raise HistoryChanged(
                "earlier messages can be added only while no turn of the conversation runs or waits"
            )
        turns.add_messages(tx, key, history, source)
    if (new := opening.settings) is not None:
        settings.configure(tx, key, agent=new.agent, model=new.model, metadata=new.metadata)
    return replace(request, history=(), opening=None)


def waiting_calls(tx: Transaction, session_key: str) -> list[ToolCall]:
    """Return the calls of a client's tools that wait for their results in a conversation.

    There are none while a message waits for its turn: the conversation goes on with that one.
    """
    found = routes.current(tx, session_key)
    if found is None or routes.is_overdue(found[0], tx.now) or inbox.count_open(tx, session_key):
        return []
    head = found[1]
    rows = messages.latest(tx, head.session_id, MAX_RESULTS) if head.message_count else ()
    return open_calls(rows)


def _checked(tx: Transaction, inbound: Inbound, request: ApiRequest) -> tuple[ToolOutput, ...]:
    """Return results with the names of their tools and their files as the store knows them."""
    key = inbound.session_key
    turns.open_route(tx, key, inbound.metadata)  # it may have moved to another session
    waiting = waiting_calls(tx, key) if request.stored else open_calls(request.history)
    names = {call.id: call.name for call in waiting}
    given = [output.call_id for output in request.outputs]
    for call_id in given:
        if call_id not in names:
            raise RequestRefused(f"no call with the id {call_id!r:.80} waits for its output")
    if len(set(given)) < len(given):
        raise RequestRefused("a call has more than one output")
    return tuple(
        replace(output, name=names[output.call_id], parts=_parts(tx, inbound, output))
        for output in request.outputs
    )


def _parts(tx: Transaction, inbound: Inbound, output: ToolOutput) -> tuple[JsonObject, ...]:
    if not output.parts:
        return ()
    return attachments.resolve(tx, replace(inbound, parts=output.parts)).parts or ()


def _decided(tx: Transaction, session_key: str, decision: ApprovalDecision) -> ApprovalDecision:
    """Decide about an approval, and return the decision with what the agent is told."""
    number, approve = decision.approval_id, decision.approve
    found = tool_records.get_approval(tx, session_key, number)
    if found is None or found.session_key != session_key:
        text = f"there is no approval request {number} in this conversation"
        raise RequestRefused(f"{text}; name the conversation or the response that asked")
    if tool_records.decide_approval(tx, session_key, number, approve=approve) is None:
        raise RequestRefused(_why_not(found))
    return replace(decision, told=message_about(found, approved=approve))


def _why_not(approval: Approval) -> str:
    state = _STATES.get(approval.state, "was decided before")
    return f"approval request {approval.approval_id} {state}"
