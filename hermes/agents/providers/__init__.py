"""Clients for model providers.

`base` has the `Provider` protocol, `Endpoint` and the errors; `openai_chat` and
`anthropic_messages` implement the protocol over `sse_transport`, with messages in the formats of
`openai_messages` and `anthropic_blocks`. `attachments` decides what a model gets of a file,
`file_body` reads files while a request is sent. `retries` repeats calls that failed,
`prompt_cache` keeps prompts byte-identical between turns, `tool_calls` makes tool calls valid for
every provider. Nothing is imported here, because the clients load an HTTP library.
"""
