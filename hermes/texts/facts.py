"""The answers of /model, /tools, /status and /usage."""

from __future__ import annotations

from hermes.texts.files import FileTexts


class FactTexts(FileTexts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What users are told about the agent, the state and the cost of a conversation."""

    # /model and /tools

    model: str = "{model} answers here."
    """The answer to /model."""
    model_fixed: str = "The host of this bot chooses the model."
    """The same if there is nothing to show."""
    model_choice: str = "- {name}: {model}"
    """A line of /model: an agent to choose."""
    how_to_choose: str = "Use /model and a name to switch."
    """The last line of /model."""
    model_set: str = "{name} ({model}) answers here from now on."
    """The answer to /model with a name."""
    unknown_model: str = "There is no agent called {name}. Choose one of these:"
    """The answer to /model with an unknown name, before a list."""
    no_tools: str = "There are no tools."
    """The answer to /tools if there are none."""
    tool_line: str = "- {name}: {summary}"
    """A line of /tools."""
    tool_line_approval: str = "- {name} (asks first): {summary}"
    """The same for a tool that needs approval."""
    tools_allowed: str = (
        "Allowed here without a question: {tools}. Use /deny always and a name to end that."
    )
    """A line of /tools."""
    server_line: str = "MCP server {name}: {tools} tools"
    """A line of /tools."""
    server_down: str = "MCP server {name} is not running: {problem}"
    """The same if it cannot be used."""

    # /status and /usage

    status_session: str = "Session {session_id}"
    """The first line of /status."""
    status_titled_session: str = "Session {session_id}: {title}"
    """The same if there is a title."""
    status_model: str = "Model: {model}"
    """Follows it, if it is known which model answers."""
    status_cost: str = "Cost so far: {cost}"
    """Follows it, if anything was paid for."""
    status_idle: str = "{messages} messages, {waiting} waiting, nothing is running"
    """The second line of /status."""
    status_running: str = "{messages} messages, {waiting} waiting, an answer is running"
    """The same during a turn."""
    status_context: str = "Context: about {tokens} of {window} tokens; compressed at {compress_at}"
    """The third line of /status."""
    status_context_note: str = (
        "Context: about {tokens} of {window} tokens; compressed at {compress_at} ({note})"
    )
    """The same while automatic compression is suspended."""
    usage_tokens: str = (
        "{calls} calls, {input} input tokens (and {cached} from the cache), {output} output tokens."
    )
    """The answer to /usage."""
    usage_tokens_one: str = (
        "1 call, {input} input tokens (and {cached} from the cache), {output} output tokens."
    )
    """The same for one call."""
    usage_cost: str = (
        "{calls} calls, {input} input tokens (and {cached} from the cache), "
        "{output} output tokens, cost {cost}."
    )
    """The same if the cost is known."""
    usage_cost_one: str = (
        "1 call, {input} input tokens (and {cached} from the cache), "
        "{output} output tokens, cost {cost}."
    )
    """The same for one call whose cost is known."""
    usage_unpriced: str = "Calls without a price: {calls} ({models})."
    """Added to the answer to /usage if calls were not priced."""
