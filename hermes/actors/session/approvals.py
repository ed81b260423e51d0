"""`/approve` and `/deny`: a user decides about a tool call.

A command decides only about calls that its user had been shown when it was accepted. If there were
several, it must name one: otherwise a command that was sent twice, or that crossed with another
question, would decide about a call that its user did not mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from hermes.actors.context import RuntimeContext
from hermes.actors.session.commands.listing import is_number
from hermes.actors.session.files import with_files
from hermes.actors.session.running_turn import RunningTurn
from hermes.actors.session.state import SessionState
from hermes.messages import (
    APPROVAL,
    Approval,
    Inbound,
    InboxReply,
    InboxRow,
    TurnCommit,
    TurnResult,
)
from hermes.sanitize import shorten
from hermes.texts import Texts
from hermes.transcript import questions
from hermes.transcript.decisions import message_about

_ALWAYS = re.compile(r"always(?:\s+(\S.*))?", re.IGNORECASE | re.DOTALL)
_SHOW = re.compile(r"show\s+([0-9]{1,18})(?:\s+([0-9]{1,9}))?", re.IGNORECASE)
ALWAYS = "approve always"
MAX_NAME = 100

ReplyTo: TypeAlias = Callable[[str], InboxReply]
"""Makes the reply to the command from its text."""


class Answer(msgspec.Struct, frozen=True):
    """What the user is told; `stored` if the reply is already on disk.

    `shows` are the calls that the text shows.
    """

    text: str
    stored: bool = False
    shows: tuple[Approval, ...] = ()


def with_details(
    commit: TurnCommit, turn: RunningTurn, result: TurnResult, context: RuntimeContext
) -> TurnCommit:
    """Add what only some turns have: questions, files, calls of a client's tools."""
    commit = with_questions(commit, turn, context)
    if result.files:
        commit = with_files(commit, result.files, turn.rows[-1])
    if result.calls and commit.reply is not None:
        commit = replace(commit, reply=replace(commit.reply, calls=tuple(result.calls)))
    return commit


def with_questions(commit: TurnCommit, turn: RunningTurn, context: RuntimeContext) -> TurnCommit:
    """Add the questions of a turn to its reply, also to the text if the host shows it.

    They precede the text of the agent: a fence or a comment that it leaves open would include them.
    """
    asked, reply = turn.asked, commit.reply
    if not asked or reply is None:
        return commit
    if context.questions.route(turn.source).delivery == "host":
        parts = [*(questions.question(each, context.texts) for each in asked), reply.text]
        reply = replace(reply, text="\n\n".join(filter(None, parts)))
    return replace(commit, reply=replace(reply, approvals=asked))


async def run(
    state: SessionState, row: InboxRow, command: str, argument: str, reply: ReplyTo
) -> Answer | None:
    """Run `/approve` or `/deny`. Returns None if the argument is wrong."""
    await state.context.questions.flush()
    found = _SHOW.fullmatch(argument) if command == "approve" else None
    if found is not None:
        return await _show(state, row, int(found[1]), int(found[2] or 1), reply)
    if (always := _ALWAYS.fullmatch(argument)) is not None:
        argument = (always[1] or "").strip("` \n")  # as copied from the answer, which has backticks
        if command == "deny":
            return await _revoke(state, row, argument, reply) if argument else None
        command = ALWAYS
    if not argument:
        return await _decide_only_one(state, row, command, reply)
    if not is_number(argument):
        return None
    approval = await state.store.get_approval(row.inbound.session_key, int(argument[:18]))
    if approval is None:
        return Answer(state.context.texts.unknown_approval.format(number=argument[:18]))
    return await _decide(state, row, command, approval, reply)


async def _decide_only_one(
    state: SessionState, row: InboxRow, command: str, reply: ReplyTo
) -> Answer:
    """Decide about the only call that was open when the command was accepted, if it was one."""
    key, texts = row.inbound.session_key, state.context.texts
    known = await state.store.open_approvals(key, row.inbox_id)
    if len(known) == 1:
        return await _decide(state, row, command, known[0], reply)
    if pending := [approval for approval in known if approval.state == "pending"]:
        text = texts.which_call.format(command=command)
    elif pending := await state.store.pending_approvals(key):
        text = texts.not_shown
    else:
        return Answer(texts.no_approvals)
    return Answer(f"{text}\n{questions.listing(pending)}")


async def _decide(
    state: SessionState, row: InboxRow, command: str, approval: Approval, reply: ReplyTo
) -> Answer:
    """Decide about a call and tell its agent, in one transaction.

    An agent that was not told of a refusal would ask again, or continue as if the call had run.
    """
    approve, texts, source = command != "deny", state.context.texts, row.inbound.source
    templates = {"deny": texts.denied, ALWAYS: texts.approved_always}
    template = templates.get(command, texts.approved)
    limit = state.context.questions.route(source).limit
    text = questions.described(approval, template, texts, limit=limit)
    decided = await state.store.decide_approval(
        approval.asked_of,
        approval.approval_id,
        approve=approve,
        always=command == ALWAYS,
        before=row.inbox_id,
        answer=reply(text),
        then=_message_to_agent(row, approval, approved=approve),
        policy=state.context.config.expiry_of(source.platform, source.chat_type),
    )
    if decided is not None:
        return Answer(text, stored=True)
    now = await state.store.get_approval(approval.asked_of, approval.approval_id)
    if now is not None and now.state == "pending":
        return Answer(f"{texts.not_shown}\n{questions.listing([now])}")
    return Answer(_why_not(now, texts).format(number=approval.approval_id))


async def _revoke(state: SessionState, row: InboxRow, tool: str, reply: ReplyTo) -> Answer:
    """Ask again for each call of a tool that was allowed for good."""
    text = state.context.texts.revoked.format(tool=tool)
    key = row.inbound.session_key
    if await state.store.revoke_tool(key, tool, answer=reply(text)):
        return Answer(text, stored=True)
    return Answer(state.context.texts.not_allowed.format(tool=shorten(tool, MAX_NAME)))


def _message_to_agent(row: InboxRow, approval: Approval, *, approved: bool) -> Inbound:
    return replace(
        row.inbound,
        session_key=approval.session_key,
        event_id=f"{APPROVAL}:{approval.approval_id}",
        text=message_about(approval, approved=approved),
        command=False,
        parts=None,
        when_busy="queue",
    )


def _why_not(approval: Approval | None, texts: Texts) -> str:
    """Return why there was nothing to decide about a call."""
    reasons = {
        "approved": texts.already_approved,
        "denied": texts.already_denied,
        "used": texts.already_used,
        "expired": texts.approval_expired,
    }
    return reasons.get("" if approval is None else approval.state, texts.unknown_approval)


async def _show(
    state: SessionState, row: InboxRow, number: int, page: int, reply: ReplyTo
) -> Answer:
    """Show a page of a call. The first one also asks a question that was never delivered."""
    key, store = row.inbound.session_key, state.store
    approval = await store.get_approval(key, number)
    if approval is None:
        return Answer(state.context.texts.unknown_approval.format(number=number))
    route = state.context.questions.route(row.inbound.source)
    text = questions.question(approval, state.context.texts, page, limit=route.limit)
    if page > 1 and text != questions.question(approval, state.context.texts, limit=route.limit):
        return Answer(text)  # it has several pages
    answer = reply(text)
    if answer.reply is not None:
        answer = replace(answer, reply=replace(answer.reply, approvals=(approval,)))
    await store.show_approval(key, number, answer=answer, sent=route.delivery == "outbox")
    return Answer(text, stored=True, shows=(approval,))
