"""The names of spans and attributes, in one table.

They are those of OpenTelemetry's conventions for generative AI, in an edition of choice; Langfuse
reads `session.id` and `user.id`, and Phoenix the names of OpenInference.
"""

from __future__ import annotations

from typing import Final

TURN: Final = "hermes.turn"
COMMIT: Final = "hermes.commit"
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

SESSION: Final = "session.id"
USER: Final = "user.id"
CONVERSATION: Final = "gen_ai.conversation.id"
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
STREAM: Final = "gen_ai.request.stream"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
AGENT: Final = "gen_ai.agent.name"
TOOL: Final = "gen_ai.tool.name"
TOOL_CALL: Final = "gen_ai.tool.call.id"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"
ERROR: Final = "error.type"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
CACHE_WRITE: Final = {
    "1.41": "gen_ai.usage.cache_creation.input_tokens",
    "latest": "gen_ai.usage.cache_write.input_tokens",
}
"""By edition."""

KIND: Final = "openinference.span.kind"
PROMPT_TOKENS: Final = "llm.token_count.prompt"
COMPLETION_TOKENS: Final = "llm.token_count.completion"
PROMPT_CACHE_READ: Final = "llm.token_count.prompt_details.cache_read"
PROMPT_CACHE_WRITE: Final = "llm.token_count.prompt_details.cache_write"
COST: Final = "llm.cost.total"

TURN_ID: Final = "hermes.turn_id"
SESSION_KEY: Final = "hermes.session_key"
PLATFORM: Final = "hermes.platform"
STATUS: Final = "hermes.status"
ATTEMPT: Final = "hermes.attempt"
BUILD_REASON: Final = "hermes.build_reason"
QUEUED: Final = "hermes.queued_seconds"
RETRIES: Final = "hermes.retries"
