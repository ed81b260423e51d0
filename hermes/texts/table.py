"""Every sentence that Hermes itself says to users, in one table that a host can replace.

What agents, tools and models say is not part of it, and neither is what operators see on the
command line and in the log. A name in braces, such as `{title}`, stands for a value.
"""

from __future__ import annotations

import msgspec

from hermes.texts.facts import FactTexts


class Texts(FactTexts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sentences that users see. Pass the ones to replace, for example in another language.

    A sentence may use the placeholders of its default, and may leave some out, but not be empty.
    What `{error}` stands for is in the table too, or comes from an agent or a model provider.
    """

    # Turns without an answer

    failed: str = "The request failed: {error}\nUse /retry to try again, or /reset to start over."
    """The agent reported an error, or Hermes stopped the turn."""
    unexpected: str = (
        "Something went wrong (reference {reference}).\n"
        "Use /retry to try again, or /reset to start over."
    )
    """The agent raised an exception. The log has the same reference and the details."""
    stopped_early: str = "The work stopped early: {error}\nUse /retry to start it again."
    """The agent reported a partial result with an error and no text."""
    unknown_error: str = "unknown error"
    """Takes the place of `{error}` if the agent gave none."""
    timeout: str = "it took longer than {seconds} seconds"
    """The `{error}` of a turn that was stopped at its time limit."""
    still_running: str = "an earlier answer did not stop when asked to, and is still running"
    """The `{error}` of a turn that would use an agent twice at once."""
    nothing_to_answer: str = "there is no earlier message to answer again"
    """The `{error}` of a retry that finds no message."""
    too_many_steps: str = "the model called tools {steps} times without giving an answer"
    """The `{error}` of a turn that made too many model calls."""
    truncated: str = "the answer reached the token limit before it contained any text"
    """The `{error}` of an answer that consists of reasoning only."""
    not_sent: str = "The request was not sent: {error}"
    """A budget is used up. It takes the place of `failed`."""
    session_budget: str = (
        "this conversation has used up its budget ({spent} of {limit}); /new starts another"
    )
    """The `{error}` if the conversation may cost no more."""
    principal_budget: str = (
        "your budget is used up ({spent} of {limit}); ask the operator to raise it"
    )
    """The `{error}` if the user may cost no more."""
    day_budget: str = "the daily budget is used up ({spent} of {limit}); try again tomorrow"
    """The `{error}` if the day may cost no more."""
    too_many_abandoned: str = (
        "{number} earlier turns did not stop when they were cancelled and still run; "
        "no new turn starts until one of them ends"
    )
    """The `{error}` if an agent that runs in threads may start no more of them."""
    overflow: str = (
        "This conversation no longer fits into the model's context window. "
        "Use /compact to shorten it, or /reset to start a new one."
    )
    """The conversation is too long for the model."""
    not_started: str = "This was interrupted before I started on it. Please send it again."
    """The turn was interrupted before the first model call."""
    no_text: str = "The model finished without a reply. Ask for more, or use /retry."
    """The agent returned no text."""
    not_processed: str = "Your message wasn't processed. Please send it again."
    """The agent did nothing."""

    # Notices

    expired: str = (
        "The last conversation has expired, so this is a new one. Use /resume to go back to it."
    )
    """The first answer after a conversation has expired."""
    agent_replaced: str = (
        "The agent did not stop when asked to, so it was replaced. Whatever it still does has no "
        "effect on this conversation."
    )
    """An interrupted agent was abandoned."""
    busy: str = "I'm still answering; please send this again in a moment."
    """A message was refused because a turn is running (`when_busy` is "reject")."""
    gave_up: str = (
        "I tried {attempts} times to answer this and never finished, so I gave up. "
        "Your message is kept; send it again for another try."
    )
    """A message was set aside because the process ended during each of its turns."""
    paused: str = (
        "This conversation failed repeatedly and is paused for a while. "
        "Your messages are saved and will be answered."
    )
    """The conversation is in quarantine."""
    overloaded: str = (
        "Too many messages are waiting, so your last one was not accepted. "
        "Please send it again later."
    )
    """A platform's message was refused because too many are waiting."""
    retrying: str = "[Connection lost; retrying.]"
    """Streamed between two attempts of a model to write an answer."""
    retrying_in: str = "Retrying in {seconds} s ({reason})."
    """Shown while a call of the model waits for its next attempt."""
    rate_limited: str = "rate limited"
    """A `{reason}`: the provider has refused the call because of too many requests."""
    no_connection: str = "the model cannot be reached"
    """A `{reason}`: the connection failed, or the provider had an error."""
    part_missing: str = "[Part of this answer could not be read and is missing.]"
    """The end of an answer of which the model's server has sent a part that cannot be decoded."""
    recovered: str = "You may have seen this before:"
    """Telegram: the line before a message that may be sent twice."""

    # Compression

    compressed: str = "Compressed from about {before} to {after} tokens."
    """The answer to /compress."""
    compression_failed: str = (
        "The conversation could not be compressed: {error}. Nothing was changed. "
        "Use /compress to try again."
    )
    """There is no summary."""
    compression_unexpected: str = "something went wrong, reference {reference}"
    """The `{error}` if the compressor raised an exception; the log has the same reference."""
    compression_timeout: str = "the summary took too long"
    """The `{error}` if the summary was not written in time."""
    summary_empty: str = "the model returned an empty summary"
    """The `{error}` if there is no summary."""
    summary_truncated: str = "the summary exceeds the model's maximum answer; raise max_tokens"
    """The `{error}` if the summary was cut."""
    summary_damaged: str = "a part of the model's summary could not be read"
    """The `{error}` if the model's server has sent a part that cannot be decoded."""
    not_compressed: str = "Not compressed: {reason}."
    """The answer to /compress if there is nothing to do."""
    no_compressor: str = "there is no compressor"
    """A `{reason}`: the runtime compresses nothing."""
    nothing_to_compress: str = "there is nothing to summarize yet"
    """A `{reason}`: the conversation is too short."""
    compression_useless: str = "the summary would not make it smaller"
    """A `{reason}`: the summary was discarded."""
    already_compressed: str = "it was already compressed"
    """A `{reason}`: another process was faster."""
    compression_running: str = "another compression is running"
    """A `{reason}`: another compression is at work."""
    compression_outdated: str = "the conversation has changed meanwhile"
    """A `{reason}`: the summary came too late."""
    compressed_by_turn: str = "already compressed by a turn"
    """A `{reason}`: a turn was faster."""
    compressed_by_request: str = "already compressed by another request"
    """A `{reason}`: another request was faster."""
    tried_by_turn: str = "a turn has just tried it without success ({outcome})"
    """A `{reason}`: a turn was faster, but compressed nothing."""
    tried_by_request: str = "another request has just tried it without success ({outcome})"
    """A `{reason}`: another request was faster, but compressed nothing."""
    compressions_useless: str = "{number} compressions in a row did not make it smaller"
    """The `{note}` of /status while automatic compression is suspended."""
    compression_later: str = "the last compression failed ({error}) and will be retried later"
    """The `{note}` of /status after a failure."""

    # Answers to commands

    unknown_command: str = (
        "Unknown command {command}. See /help, or begin with // to send it as text."
    )
    """A text was sent as a command and is none."""
    unknown_command_meant: str = (
        "Unknown command {command}, did you mean {meant}? Begin with // to send it as text."
    )
    """The same if a command has a similar name."""
    usage: str = "Usage: {usage}"
    """A command lacks its argument."""
    command_failed: str = "That did not work: {error}."
    """A command was refused."""
    session_changed: str = "the conversation has changed meanwhile"
    """The `{error}` if a session has ended or no longer exists."""
    store_busy: str = "the database is busy; try again in a moment"
    """The `{error}` if another process holds the database."""
    store_full: str = "the disk is full"
    """The `{error}` if nothing can be stored."""
    too_much_waiting: str = "too much is waiting already; try again later"
    """The `{error}` if a queue is full."""
    shutting_down: str = "the bot is shutting down; try again later"
    """The `{error}` if the runtime ends."""
    command_unexpected: str = "That did not work (reference {reference})."
    """A command failed with an error that users are not shown; the log has the reference."""
    new_session: str = "New session."
    """The answer to /new."""
    new_titled_session: str = "New session: {title}."
    """The answer to /new with a title."""
    cancelled_one: str = "1 queued message was cancelled."
    """Added to the answers to /new and /stop."""
    cancelled_many: str = "{number} queued messages were cancelled."
    """The same for several messages."""
    stopped: str = "Stopped."
    """The answer to /stop."""
    nothing_running: str = "Nothing is running."
    """The answer to /stop if there is nothing to stop."""
    no_sessions: str = "There are no conversations yet."
    """The answer to /sessions if there are none."""
    session_line: str = "{number}. {name} ({messages} messages, {date})"
    """A line of /sessions."""
    current_session_line: str = "{number}. {name} ({messages} messages, {date}) (current)"
    """The line of the current conversation."""
    more_sessions: str = "… and {number} more"
    """The line after the listed ones."""
    how_to_resume: str = "Use /resume to go to one of them."
    """The last line of /sessions."""
    resumed: str = "Back in {name}."
    """The answer to /resume."""
    last_question: str = "You said: {text}"
    """Follows it: the last message of the conversation."""
    last_answer: str = "The answer was: {text}"
    """Follows it: the answer to the last message."""
    already_there: str = "This is the current conversation already."
    """Nothing was switched; only programs are told this."""
    no_such_session: str = "You have no conversation called {wanted}. Use /sessions to list them."
    """The answer to /resume if nothing matches."""
    ambiguous_session: str = (
        "You have more than one conversation called {wanted}. Use /resume with a number:"
    )
    """The answer to /resume if several match; a list of them follows."""
    nothing_found: str = "Nothing found for {query}."
    """The answer to /search."""
    search_hit: str = "{date} {name}: {text}"
    """A line of /search."""
    search_call: str = "calls {calls}"
    """The `{text}` of a message that calls tools."""
    search_result: str = "{tool} returned: {text}"
    """The `{text}` of the result of a tool."""
    how_to_resume_hit: str = "Use /resume and the name of a conversation to go to it."
    """The last line of /search."""
    confirm_delete: str = (
        "This deletes {name} ({messages} messages) for good. "
        "Reply /delete {session_id} yes to do that."
    )
    """The answer to /delete without a confirmation."""
    deleted: str = "Deleted: {name}."
    """The answer to /delete with a confirmation."""
    nothing_to_delete: str = "There is nothing to delete yet."
    """The answer to /delete if the conversation is empty."""
    nothing_to_export: str = "There is nothing to export yet."
    """The answer to /export if the conversation is empty."""
    export_user: str = "You"
    """Heading of a message in /export."""
    export_assistant: str = "Assistant"
    """Heading of an answer in /export."""
    export_note: str = "Hermes"
    """Heading of a decision about a tool call in /export."""
    export_cut: str = "… {number} earlier messages are left out."
    """The first line of /export if the conversation is too long for a message."""
    goodbye: str = "Goodbye."
    """The answer to /quit, which usually ends the console before it is sent."""
    start: str = "Hello! Send me a message, or see /help for what else I can do."
    """The answer to /start, which Telegram sends when a chat is opened."""
    button_approve: str = "Allow once"
    """A button below a question for approval."""
    button_always: str = "Always allow here"
    """A button below a question for approval."""
    button_deny: str = "Deny"
    """A button below a question for approval."""
    branched: str = "This is a copy now. Use /resume to go back to the original."
    """The answer to /branch."""
    nothing_to_branch: str = "There is nothing to copy yet."
    """The answer to /branch if the conversation is empty."""
    nothing_to_close: str = "There is no conversation to end."
    """Nothing was closed; only programs are told this."""
    title: str = "The title is: {title}"
    """The answer to /title."""
    no_title: str = "There is no title. Use /title to set one."
    """The answer to /title if there is none."""
    title_set: str = "The title is now: {title}"
    """The answer to /title with a title."""
    title_taken: str = (
        "You already have a conversation called {title}. Use /resume {target} to go back to it."
    )
    """The answer to a command with the title of another conversation."""
    title_too_long: str = "The title is too long ({length} characters; the limit is {limit})."
    """The answer to a command with a title that is too long."""
    undone: str = "Taken back: {text}"
    """The answer to /undo, with the message."""
    undone_many: str = "Taken back: {text} and {number} more."
    """The answer to /undo with the first of several messages."""
    nothing_to_undo: str = "There is nothing to take back."
    """The answer to /undo if there is no message."""
    nothing_to_retry: str = "There is nothing to try again."
    """The answer to /retry if there is no message."""
    in_background: str = "It is running in the background."
    """The answer to /background."""
    whoami: str = "You are {user} on {platform}; this chat is {session_key}."
    """The answer to /whoami."""
    whoami_role: str = "You are {user} on {platform}, {role}; this chat is {session_key}."
    """The same if there is an access policy."""
    no_user: str = "unnamed"
    """The `{user}` of /whoami if the platform names none."""

    # Approvals of tool calls

    approval_question: str = (
        "May {tool} run with this? {arguments}\n"
        "Reply /approve {number} to allow it once, /approve always {number} for this tool here, "
        "or /deny {number}."
    )
    """Asks the user to approve a tool call. The arguments are a code block."""
    approval_page: str = "Page {page} of {pages}: /approve show {number} PAGE. SHA-256: {digest}"
    """Follows arguments that are too long for one message: how to see all, and their digest."""
    which_call: str = "Several calls wait. Reply /{command} and the number of one of them:"
    """The answer to /approve or /deny without a number, before a list of the calls."""
    not_shown: str = "Not decided, as it was not shown before. Reply /approve show and the number:"
    """The user cannot have meant a call that was shown later, or not at all; before a list."""
    approved: str = "Approved: {tool} with {arguments}"
    """The answer to /approve."""
    approved_always: str = (
        "Approved: {tool} with {arguments}\n"
        "{tool} runs here without a question from now on; /deny always {tool} ends that."
    )
    """The answer to /approve always."""
    revoked: str = "{tool} asks here again before each call."
    """The answer to /deny always."""
    not_allowed: str = (
        "Nothing has changed: {tool} is not allowed here without a question. See /tools."
    )
    """The same if there is nothing to revoke."""
    denied: str = "Denied: {tool} with {arguments}"
    """The answer to /deny."""
    no_approvals: str = "There is no tool call to decide about."
    """Nothing was asked."""
    unknown_approval: str = "There is no pending call {number} here."
    """No call has this number."""
    already_approved: str = "You have already approved call {number}."
    """The decision was made before."""
    already_denied: str = "You have already denied call {number}."
    """The decision was made before."""
    already_used: str = "Call {number} was approved and has run."
    """The decision was made before."""
    approval_expired: str = "Call {number} has expired; ask for it again."
    """The decision comes too late."""

    # Access control and pairing

    unknown_sender: str = "I don't know you, so I didn't accept your message."
    """The message of `NotAdmitted` for an unknown sender, who is not sent it."""
    role_too_low: str = "{command} is not available to a {role}. See /help for what you can do."
    """A command is not for this sender."""
    too_fast: str = (
        "You're sending messages too quickly; some were not accepted. Please wait a moment."
    )
    """The rate limit is exceeded."""
    pairing_offer: str = (
        "I don't know you yet. Ask the operator to run this within an hour: /pair {code}"
    )
    """Sent to an unknown user who may be paired."""
    pairing_welcome: str = "You have been let in. Send a message, or see /help."
    """Sent to a user who was paired."""
    paired: str = "{user} has been let in as {role}."
    """The answer to /pair."""
    wrong_code: str = (
        "No request has this code. A code works once, within an hour. "
        "{left} tries left before a pause."
    )
    """The answer to /pair with a wrong code."""
    wrong_code_last: str = (
        "No request has this code. A code works once, within an hour. 1 try left before a pause."
    )
    """The same before the last try."""
    pairing_locked: str = "There were too many wrong codes. Try again in {time}."
    """The answer to /pair after too many wrong codes."""
    nobody_paired: str = "There are no pairing requests and no paired users."
    """The answer to /pair without a code, if there is nothing to list."""
    pairing_request: str = "waiting for {time}: {user}"
    """A line of /pair: somebody who holds a code."""
    paired_user: str = "{role}: {user}"
    """A line of /pair: a paired user."""
    sender: str = "{user_id} on {platform}"
    """The `{user}` of the sentences about pairing."""
    sender_named: str = "{user_id} on {platform} (calls itself {name}, unverified)"
    """The same if the platform gives a name, which users choose by themselves."""
    one_minute: str = "1 minute"
    """A `{time}`."""
    minutes: str = "{minutes} minutes"
    """A longer `{time}`."""
    unpaired: str = "{user_id} on {platform} has been removed."
    """The answer to /unpair."""
    never_paired: str = "{user_id} on {platform} is not a paired user."
    """The answer to /unpair if there is no such user."""
    no_access_control: str = "The host decides who may use this bot, so there is nothing to pair."
    """The answer to /pair and /unpair without an access policy."""
    not_operator: str = "This command is for operators, and you are not one any more."
    """The answer to /pair and /unpair if the role was withdrawn meanwhile."""


ENGLISH = Texts()
"""The sentences as Hermes has written them."""


def help_line(texts: Texts, command: str) -> tuple[str, str]:
    """Return how a command is used, and what it does."""
    usage, _, summary = str(msgspec.structs.asdict(texts)[f"help_{command}"]).partition(": ")
    return usage, summary
