"""What a user can say that is not for the agent: `/new`, `/resume`, `/compress` and the rest.

Commands are accepted like messages, and end with the change they ask for, in its transaction. They
see the conversations of their own session_key and no others.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from hermes.actors.admission import pairing
from hermes.actors.compression.compressor import Compressed, CompressionFailed
from hermes.actors.context import answer_to
from hermes.actors.session import approvals
from hermes.actors.session.policy import CommandMode
from hermes.actors.session.running_turn import Mail
from hermes.errors import HermesError
from hermes.messages import (
    Busy,
    Inbound,
    InboxReply,
    Role,
    SessionSummary,
    StoredMessage,
    Transcript,
    may,
)
from hermes.session_keys import background_key
from hermes.transcript import compaction

if TYPE_CHECKING:
    from hermes.actors.session.actor import SessionActor

SHOWN = 10
SEARCHED = 200
MAX_KEPT = 100
LINE = 80
_COMMAND = re.compile(r"/([a-z]+)(?:@\S+)?(?:\s+(.*))?", re.DOTALL | re.IGNORECASE)
_HERE = re.compile(r"(?:up to )?here(?:\s+(\d+))?|(?:--keep[= ]|-k )(\d+)", re.IGNORECASE)


class Command(msgspec.Struct, frozen=True):
    """A command: how it treats a running turn, and how it is explained."""

    manner: CommandMode
    usage: str
    summary: str
    role: Role = "user"
    """Who may use it, where an admission tells people apart."""


COMMANDS: Mapping[str, Command] = {
    "new": Command("stops", "/new [title]", "begin a new conversation (also /reset)", "guest"),
    "resume": Command("waits", "/resume [number, id or title]", "go back to a conversation"),
    "sessions": Command("now", "/sessions", "list your conversations"),
    "title": Command("now", "/title [title]", "show or set the title"),
    "branch": Command("waits", "/branch [title]", "go on in a copy of this conversation"),
    "compress": Command(
        "waits", "/compress [here N | focus]", "sum up the older part (also /compact)"
    ),
    "retry": Command("waits", "/retry", "answer your last message again", "guest"),
    "undo": Command(
        "waits", "/undo [number]", "take back your last messages and their answers", "guest"
    ),
    "stop": Command("stops", "/stop", "stop the running answer, and drop what waits", "guest"),
    "queue": Command("message", "/queue <text>", "say something after the running answer", "guest"),
    "steer": Command("steers", "/steer <text>", "say something into the running answer", "guest"),
    "background": Command("now", "/background <text>", "have something done beside"),
    "approve": Command("waits", "/approve [number]", "allow a tool what it has asked for, once"),
    "deny": Command("waits", "/deny [number]", "refuse a tool what it has asked for"),
    "status": Command("now", "/status", "show where this conversation stands"),
    "usage": Command("now", "/usage", "show what it has cost so far"),
    "help": Command("now", "/help", "show the commands", "guest"),
    "whoami": Command("now", "/whoami", "show who you are here", "guest"),
    "pair": Command(
        "waits", "/pair [code [role]]", "let somebody in, or show who waits", "operator"
    ),
    "unpair": Command("waits", "/unpair <platform> <user id>", "take that back", "operator"),
}
ALIASES = {"reset": "new", "compact": "compress"}


class Parsed(msgspec.Struct, frozen=True):
    """A command as it was typed."""

    name: str
    argument: str


def parse(text: str) -> Parsed | None:
    """The command that a text is; None where it is none that we know."""
    found = _COMMAND.fullmatch(text.strip())
    if found is None:
        return None
    name = found.group(1).lower()
    name = ALIASES.get(name, name)
    return Parsed(name, (found.group(2) or "").strip()) if name in COMMANDS else None


def command_name(inbound: Inbound) -> str | None:
    """The command that a message is, if it is one that we know."""
    parsed = parse(inbound.text) if inbound.command else None
    return None if parsed is None else parsed.name


def mode_of(inbound: Inbound) -> CommandMode:
    """How a message or command treats a running turn."""
    parsed = parse(inbound.text) if inbound.command else None
    if parsed is None:
        return "now" if inbound.command else "message"
    if COMMANDS[parsed.name].manner in {"message", "steers"} and not parsed.argument:
        return "now"  # nothing to say: it is told how to use the command
    return COMMANDS[parsed.name].manner


def unwrapped(inbound: Inbound) -> Inbound:
    """The message inside `/queue` and `/steer`; anything else as it is."""
    parsed = parse(inbound.text) if inbound.command else None
    if parsed is None or not parsed.argument or parsed.name not in {"queue", "steer"}:
        return inbound
    busy: Busy = "queue" if parsed.name == "queue" else "steer"
    return replace(inbound, text=parsed.argument, command=False, busy=busy)


class Commands:
    """Runs the commands of one actor."""

    def __init__(self, actor: SessionActor) -> None:
        self._actor = actor
        self._store = actor.context.store

    async def run(self, mail: Mail, dropped: Sequence[Mail]) -> str | None:
        """Do what the command says and answer it; None where it became a turn.

        `dropped` are messages that it ended before they had their turn.
        """
        parsed = parse(mail.inbound.text)
        mails = [*dropped, mail]
        if parsed is None:
            return await self._say(mails, f"There is no command {_first_word(mail)}; see /help.")
        try:
            verb = _VERBS[parsed.name]
            return await verb(self, mails, parsed.argument)
        except (HermesError, ValueError) as error:
            return await self._say(mails, f"That did not work: {error}")

    async def _say(self, mails: Sequence[Mail], text: str) -> str:
        await self._store.answer(self._answer(mails, text))
        return text

    def _answer(self, mails: Sequence[Mail], text: str) -> InboxReply:
        return answer_to(mails, self._actor.place.session_id or "", text, "command")

    # Conversations

    async def new(self, mails: Sequence[Mail], title: str) -> str:
        text = "New session" + (f": {title}" if title else "") + "." + _dropped(mails)
        await self._actor.verbs.new_session(
            title or None,
            platform=mails[-1].inbound.source.platform,
            answer=self._answer(mails, text),
        )
        return text

    async def stop(self, mails: Sequence[Mail], _: str) -> str:
        stopped = self._actor.has_stopped(mails[-1]) or len(mails) > 1
        text = "Stopped." if stopped else "Nothing is running."
        return await self._say(mails, text + _dropped(mails))

    async def _own(self) -> list[SessionSummary]:
        return await self._store.list_sessions(session_key=self._actor.key, limit=SEARCHED)

    async def sessions(self, mails: Sequence[Mail], _: str) -> str:
        found = await self._own()
        if not found:
            return await self._say(mails, "There are no conversations yet.")
        lines = [_line(number, each) for number, each in enumerate(found[:SHOWN], 1)]
        more = [f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        return await self._say(mails, "\n".join([*lines, *more, "Go to one with /resume."]))

    async def resume(self, mails: Sequence[Mail], wanted: str) -> str:
        if not wanted:
            return await self.sessions(mails, "")
        found = pick(await self._own(), wanted)
        if isinstance(found, str):
            return await self._say(mails, found)
        text = f"Back in {found.session.title or found.session.id}."
        await self._actor.verbs.switch(found.session.id, answer=self._answer(mails, text))
        return text

    async def branch(self, mails: Sequence[Mail], title: str) -> str:
        head = await self._actor.place.locate(look=True)
        if not head.message_count:
            return await self._say(mails, "There is nothing to branch from yet.")
        text = "This is a copy now; /resume goes back to the original."
        await self._actor.verbs.branch(title or None, answer=self._answer(mails, text))
        return text

    async def title(self, mails: Sequence[Mail], title: str) -> str:
        if not title:
            shown = await self._actor.verbs.title()
            text = f"The title is: {shown}" if shown else "There is no title yet; /title sets one."
            return await self._say(mails, text)
        await self._actor.verbs.set_title(title)
        return await self._say(mails, f"The title is now: {title}")

    # The transcript

    async def undo(self, mails: Sequence[Mail], argument: str) -> str:
        if argument and not (argument.isascii() and argument.isdigit()):
            return await self._explain(mails, "undo")  # a slip must not take anything back
        number = int(argument or 1)
        transcript = await self._load()
        asked = _asked(transcript)[-number:] if number else []
        if not asked:
            return await self._say(mails, "There is nothing to take back.")
        text = f"Taken back: {_short(asked[0].content)}"
        text += f" and {len(asked) - 1} more." if len(asked) > 1 else ""
        await self._actor.verbs.rewind(
            transcript.head, asked[0].id, answer=self._answer(mails, text)
        )
        return text

    async def retry(self, mails: Sequence[Mail], _: str) -> str | None:
        transcript = await self._load()
        asked = _asked(transcript)
        if not asked:
            return await self._say(mails, "There is nothing to try again.")
        await self._actor.turn(mails, retry=True)
        return None

    async def _load(self) -> Transcript:
        head = await self._actor.place.locate(look=True)
        return await self._store.load(head.session_id)

    async def compress(self, mails: Sequence[Mail], argument: str) -> str:
        here = _HERE.fullmatch(argument)
        keep = None
        if here is not None:
            keep = min(int(here.group(1) or here.group(2) or 2), MAX_KEPT)
        outcome = await self._actor.answering.room.compress(
            f"{mails[-1].inbox_id}:command",
            focus=None if here is not None else argument or None,
            keep_exchanges=keep,
            answer=functools.partial(self._answer, mails),
        )
        match outcome:
            case Compressed() | CompressionFailed():
                text = outcome.text
            case skipped:
                by = f" ({skipped.holder})" if skipped.holder else ""
                text = f"Not compressed: {skipped.reason}{by}."
        return await self._say(mails, text)

    # Beside

    async def background(self, mails: Sequence[Mail], text: str) -> str:
        if not text:
            return await self._explain(mails, "background")
        mail = mails[-1]
        await self._actor.context.submit(background(mail, text))
        return await self._say(mails, "It is being done in the background.")

    async def approve(self, mails: Sequence[Mail], argument: str) -> str:
        return await self._decide(mails, "approve", argument)

    async def deny(self, mails: Sequence[Mail], argument: str) -> str:
        return await self._decide(mails, "deny", argument)

    async def _decide(self, mails: Sequence[Mail], name: str, argument: str) -> str:
        if argument and not (argument.isascii() and argument.isdigit()):
            return await self._explain(mails, name)
        answer = functools.partial(self._answer, mails)
        policy = self._actor.context.config.expiry_of
        done = await approvals.decide(
            self._store, mails[-1], argument, answer, policy, approve=name == "approve"
        )
        return done.text if done.answered else await self._say(mails, done.text)

    async def _explain(self, mails: Sequence[Mail], name: str) -> str:
        return await self._say(mails, f"Use it like this: {COMMANDS[name].usage}")

    async def queue(self, mails: Sequence[Mail], _: str) -> str:
        return await self._explain(mails, "queue")

    async def steer(self, mails: Sequence[Mail], _: str) -> str:
        return await self._explain(mails, "steer")

    async def status(self, mails: Sequence[Mail], _: str) -> str:
        status = await self._actor.status()
        builds = ", ".join(f"{reason} {n}" for reason, n in status.builds.items()) or "none"
        lines = [
            f"Session {status.session_id}" + (f": {status.title}" if status.title else ""),
            f"{status.message_count} messages, {status.waiting} waiting, "
            + ("an answer is running" if status.busy else "nothing is running"),
            f"Context: about {status.context_tokens} of {status.window} tokens; "
            f"it is compressed at {status.compress_at}"
            + (f" ({status.compression_note})" if status.compression_note else ""),
            f"Agents built: {builds}",
        ]
        return await self._say(mails, "\n".join(lines))

    async def usage(self, mails: Sequence[Mail], _: str) -> str:
        head = await self._actor.place.locate(look=True)
        calls = await self._store.get_usage(head.session_id)
        cost = sum(call.cost or 0.0 for call in calls)
        text = (
            f"{len(calls)} calls, {sum(c.input_tokens for c in calls)} tokens in "
            f"({sum(c.cache_read_tokens for c in calls)} more from the cache), "
            f"{sum(c.output_tokens for c in calls)} out"
        )
        return await self._say(mails, text + (f", {cost:.4f} in cost." if cost else "."))

    async def help(self, mails: Sequence[Mail], _: str) -> str:
        role = await self._role(mails)
        shown = [each for each in COMMANDS.values() if may(role, each.role)]
        return await self._say(mails, "\n".join(f"{each.usage}: {each.summary}" for each in shown))

    async def whoami(self, mails: Sequence[Mail], _: str) -> str:
        source = mails[-1].inbound.source
        who = source.user_id or "unnamed"
        role = "" if self._actor.context.admission is None else f", {await self._role(mails)}"
        return await self._say(
            mails, f"You are {who} on {source.platform}{role}; this chat is {self._actor.key}."
        )

    # Who may speak

    async def _role(self, mails: Sequence[Mail]) -> Role:
        """What who wrote may do now; he may have been more, or less, when it was accepted."""
        admission = self._actor.context.admission
        if admission is None:
            return "user"
        return await admission.role_of(mails[-1].inbound.source) or "guest"

    async def pair(self, mails: Sequence[Mail], argument: str) -> str:
        if (refusal := await self._not_operator(mails)) is not None:
            return await self._say(mails, refusal)
        if not argument:
            now = mails[-1].accepted_at or 0.0
            return await self._say(mails, await pairing.listing(self._store, now))
        by, answer = mails[-1].inbound.source, functools.partial(self._answer, mails)
        said = await pairing.pair(self._store, by, argument, answer)
        return await self._explain(mails, "pair") if said is None else said

    async def unpair(self, mails: Sequence[Mail], argument: str) -> str:
        if (refusal := await self._not_operator(mails)) is not None:
            return await self._say(mails, refusal)
        said = await pairing.unpair(self._store, argument, functools.partial(self._answer, mails))
        return await self._explain(mails, "unpair") if said is None else said

    async def _not_operator(self, mails: Sequence[Mail]) -> str | None:
        if self._actor.context.admission is None:
            return pairing.NO_DOOR
        return None if await self._role(mails) == "operator" else pairing.NOT_OPERATOR


_VERBS: Mapping[str, Callable[[Commands, Sequence[Mail], str], Awaitable[str | None]]] = {
    "new": Commands.new,
    "resume": Commands.resume,
    "sessions": Commands.sessions,
    "title": Commands.title,
    "branch": Commands.branch,
    "compress": Commands.compress,
    "retry": Commands.retry,
    "undo": Commands.undo,
    "stop": Commands.stop,
    "queue": Commands.queue,
    "steer": Commands.steer,
    "background": Commands.background,
    "approve": Commands.approve,
    "deny": Commands.deny,
    "status": Commands.status,
    "usage": Commands.usage,
    "help": Commands.help,
    "whoami": Commands.whoami,
    "pair": Commands.pair,
    "unpair": Commands.unpair,
}


def background(mail: Mail, text: str) -> Inbound:
    """The message of a `/background`: a conversation of its own, whose answer goes to this chat."""
    inbound = mail.inbound
    return replace(
        inbound,
        session_key=background_key(inbound.session_key, mail.inbox_id),
        event_id=f"background:{mail.inbox_id}",
        text=text,
        command=False,
        busy=None,
    )


def pick(found: Sequence[SessionSummary], wanted: str) -> SessionSummary | str:
    """The conversation that was meant: by number, id, title, or the beginning of an id."""
    if wanted.isascii() and wanted.isdigit() and 0 < int(wanted) <= len(found):
        return found[int(wanted) - 1]
    titled = [each for each in found if (each.session.title or "").lower() == wanted.lower()]
    for each in found:
        if wanted in {each.session.id, each.root_session_id}:
            return each
    if titled:
        return titled[0]
    begun = [each for each in found if each.session.id.startswith(wanted)]
    if len(begun) == 1:
        return begun[0]
    many = "several conversations" if begun else "no conversation"
    return f"There is {many} of yours called {wanted!r}; /sessions lists them."


def _asked(transcript: Transcript) -> list[StoredMessage]:
    return [row for row in transcript.messages if compaction.is_question(row)]


def _line(number: int, listed: SessionSummary) -> str:
    name = listed.session.title or listed.preview or listed.session.id
    return f"{number}. {name} ({listed.session.message_count} messages)"


def _short(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= LINE else line[: LINE - 1] + "…"


def _first_word(mail: Mail) -> str:
    return (mail.inbound.text.split() or ["/"])[0][:50]


def _dropped(mails: Sequence[Mail]) -> str:
    number = len(mails) - 1
    if not number:
        return ""
    return f" {number} waiting message{'s were' if number > 1 else ' was'} not answered."
