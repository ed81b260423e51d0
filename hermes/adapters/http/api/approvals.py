"""Endpoints for tool calls that need the user's approval, and for tools that are allowed."""

from __future__ import annotations

from starlette.responses import Response

from hermes.adapters.http.api import types as t
from hermes.adapters.http.api.conversations import MAX_PAGES, ONE
from hermes.adapters.http.api.messages import source_of
from hermes.adapters.http.api.names import is_visible, number, prefixes, resolve
from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.adapters.http.errors import ApiError, not_found
from hermes.messages import Approval


async def pending(call: Call) -> Response:
    """List the tool calls that wait for a decision. They count as shown to the user."""
    key = resolve(call, call.path["key"])
    found = await call.runtime.api.approvals(key)
    for approval in found:
        call.runtime.mark_shown(approval)
    return json_response(t.ApprovalList(found))


async def waiting(call: Call) -> Response:
    """List the tool calls that wait for a decision in all conversations of the caller.

    Those of its own count as shown to the user; an operator also sees those of others.
    """
    query, caller = call.query(t.WaitingQuery), call.caller
    found, page, after = list[Approval](), list[Approval](), query.after
    for _ in range(MAX_PAGES):
        page = await call.runtime.api.waiting_approvals(
            prefixes=prefixes(caller), after=after, limit=query.limit
        )
        found += [each for each in page if is_visible(caller, each.asked_of)]
        after = page[-1].approval_id if page else after
        if len(page) < query.limit or len(found) >= query.limit:
            break
    more, listed = len(page) == query.limit, found[: query.limit]
    for approval in listed:
        if caller.owns(approval.asked_of):
            call.runtime.mark_shown(approval)
    last = listed[-1].approval_id if len(listed) == query.limit else after
    return json_response(t.WaitingApprovals(listed, last if more else None))


async def decide(call: Call) -> Response:
    """Approve or deny a tool call. The same decision again changes nothing."""
    key = resolve(call, call.path["key"])
    body = await call.read(t.DecideBody)
    approval = await _approval(call, key)
    reply = None
    if approval.state == "pending":
        call.runtime.mark_shown(approval)
        verb = "approve always" if body.always else "approve"
        command = f"/{verb if body.approve else 'deny'} {approval.approval_id}"
        reply = await call.runtime.ask(key, command, source=source_of(call, key))
        approval = await _approval(call, key)
    wanted = {"approved", "used"} if body.approve else {"denied"}
    if approval.state not in wanted:
        text = reply.text if reply is not None else f"The call is {approval.state}."
        raise ApiError(409, text, code="conflict")
    return json_response(approval)


async def _approval(call: Call, key: str) -> Approval:
    found = await call.runtime.api.approval(key, number(call.path["number"]))
    if found is None:
        raise not_found("such tool call")
    return found


async def tools(call: Call) -> Response:
    """List the tools that the user has allowed in a conversation for good."""
    key = resolve(call, call.path["key"])
    return json_response(t.ToolList(await call.runtime.api.allowed_tools(key)))


async def revoke(call: Call) -> Response:
    """Ask again for each call of a tool."""
    key = resolve(call, call.path["key"])
    return json_response(t.Revoked(await call.runtime.api.revoke_tool(key, call.path["tool"])))


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET", path="/api/approvals", handle=waiting, query=t.WaitingQuery,
        summary="List the tool calls that wait in all conversations of the caller.",
        result=t.WaitingApprovals,
    ),
    Endpoint(
        method="GET", path=f"{ONE}/approvals", handle=pending, result=t.ApprovalList,
        summary="List the tool calls that wait for a decision.",
    ),
    Endpoint(
        method="POST", path=f"{ONE}/approvals/{{number}}", handle=decide, body=t.DecideBody,
        summary="Approve or deny a tool call.", result=Approval,
    ),
    Endpoint(
        method="GET", path=f"{ONE}/tools", handle=tools, result=t.ToolList,
        summary="List the tools that are allowed for good.",
    ),
    Endpoint(
        method="DELETE", path=f"{ONE}/tools/{{tool}}", handle=revoke, result=t.Revoked,
        summary="Ask again for each call of a tool.",
    ),
)  # fmt: skip
