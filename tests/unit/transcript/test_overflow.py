"""`is_overflow`: which provider errors mean that the request was too long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from hermes.transcript.overflow import is_overflow

OVERFLOWS = [
    # OpenAI and Azure
    "Error code: 400 - {'error': {'message': \"This model's maximum context length is 128000 "
    "tokens. However, your messages resulted in 131429 tokens. Please reduce the length of the "
    "messages.\", 'type': 'invalid_request_error', 'code': 'context_length_exceeded'}}",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "Your input exceeds this model's context window",
    "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 301429 "
    "tokens. Please reduce the length of the messages.",
    "context_length_exceeded",
    # Anthropic and Bedrock
    '400 {"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: '
    '213462 tokens > 200000 maximum"},"request_id":"req_011CTWFpbkpKZzpBJezq7xnK"}',
    "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input "
    "length or `max_tokens` and try again",
    '413 {"type":"error","error":{"type":"request_too_large","message":"Request exceeds the '
    'maximum allowed number of bytes."}}',
    "Request exceeds the maximum size",
    "An error occurred (ValidationException) when calling the ConverseStream operation: Input is "
    "too long for requested model.",
    "ValidationException: too many total text bytes: 25000123 > 25000000",
    # Gemini
    "400 INVALID_ARGUMENT. {'error': {'code': 400, 'message': 'The input token count (1196265) "
    "exceeds the maximum number of tokens allowed (1048575).', 'status': 'INVALID_ARGUMENT'}}",
    # llama.cpp, llama-cpp-python, LM Studio, Ollama
    "the request exceeds the available context size, try increasing it",
    '{"error":{"code":400,"message":"request (8201 tokens) exceeds the available context size '
    '(8192 tokens), try increasing it","type":"exceed_context_size_error","n_ctx":8192}}',
    "Requested tokens (5012) exceed context window of 4096",
    "The number of tokens to keep from the initial prompt is greater than the context length",
    "Trying to keep the first 5029 tokens when context the overflows. However, the model is loaded "
    "with context length of only 4096 tokens, which is not enough.",
    "Context size has been exceeded.",
    "prompt too long; exceeded max context length by 123 tokens",
    "the input length exceeds the context length",
    # vLLM, SGLang, TGI
    "This model's maximum context length is 8192 tokens. However, you requested 0 output tokens "
    "and your prompt contains at least 8193 input tokens. (parameter=input_tokens, value=8193)",
    "The decoder prompt (length 5120) is longer than the maximum model length of 4096.",
    "The input (5012 tokens) is longer than the model's context length (4096 tokens).",
    "Input prompt (5012 tokens) is too long and exceeds limit of 4096",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 "
    "`inputs` tokens and 20 `max_new_tokens`",
    "`inputs` must have less than 1024 tokens. Given: 1500",
    # OpenRouter and the rest
    "This endpoint's maximum context length is 131072 tokens. However, you requested about 150321 "
    'tokens (142129 of text input, 8192 in the output). Please use the "middle-out" transform.',
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Please reduce the length of the messages or completion.",
    "Prompt contains 40013 tokens, too large for model with 32768 maximum context length",
    "prompt token count of 135012 exceeds the limit of 128000",
    "Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)",
    "invalid params, context window exceeds limit (2013)",
    "Unhandled stop reason: model_context_window_exceeded",
    "Error: 400 Input length (265330) exceeds model's maximum context length (262144).",
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
    "too many tokens: size limit exceeded by 1012 tokens. Try using shorter or fewer inputs.",
    "litellm.ContextWindowExceededError: litellm.BadRequestError",
    "Prompt exceeds max length",
    "HTTP 413: Payload Too Large",
    "413 Request Entity Too Large",
    "413 status code (no body)",
    "400 Bad Request: context length exceeded",
    "request too large",
    "prompt is too long: 429 tokens > 401 maximum, of which 403 are a quotation",
]

OTHERS = [
    # Credentials
    "401 Unauthorized: invalid token",
    "Error code: 401 - {'error': {'message': 'Incorrect API key provided: sk-abc***', 'type': "
    "'invalid_request_error', 'code': 'invalid_api_key'}}",
    '401 {"type":"error","error":{"type":"authentication_error","message":"OAuth token has '
    'expired. Please obtain a new token."}}',
    "invalid_token: the access token expired while reading the context window",
    "400 API key not valid. Please pass a valid API key.",
    "403 Forbidden: your token lacks the scope for this context length",
    "403 {'error': {'message': 'Key limit exceeded (total limit)', 'code': 403}}",
    "PERMISSION_DENIED: Request had insufficient authentication scopes.",
    "ExpiredTokenException: The security token included in the request is expired",
    # Rates
    "Rate limit exceeded",
    "rate_limit_exceeded: context length exceeded",
    "429 Too Many Requests",
    "status_code=429, prompt is too long",
    "OpenAI API error (429): request too large",
    "Error code: 429 - {'error': {'message': 'Request too large for gpt-4o in organization org-x "
    "on tokens per min (TPM): Limit 30000, Requested 31756. The input or output tokens must be "
    "reduced in order to run successfully.', 'type': 'tokens', 'code': 'rate_limit_exceeded'}}",
    "Request too large for model `llama-3.1-8b-instant` on tokens per minute (TPM): Limit 6000, "
    "Requested 9012, please reduce your message size and try again.",
    "This request would exceed your organization's limit of 80,000 input tokens per minute. "
    "Please reduce the prompt length.",
    "ThrottlingException: Too many tokens, please wait before trying again.",
    "Too many tokens per day, please wait before trying again.",
    "Too many tokens processed",
    # Quotas and money
    "You exceeded your current quota, please check your plan and billing details.",
    "Quota exceeded for metric: generate_content_free_tier_input_token_count, limit: 250000",
    "429 RESOURCE_EXHAUSTED. {'error': {'message': 'Resource has been exhausted'}}",
    "400 Your credit balance is too low to access the Anthropic API.",
    "402 This request requires more credits, or fewer max_tokens. You requested up to 65536 "
    "tokens, but can only afford 4012.",
    # Limits of another kind
    "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens",
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.",
    "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes",
    "431 Request Header Fields Too Large",
    "Bad Request: message is too long",
    "context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
    "HTTPSConnectionPool(host='api', port=443): Max retries exceeded with url: /v1/messages",
    "maximum recursion depth exceeded",
    "Model Context Protocol server exceeded its time limit",
    "Extra usage is required for long context requests.",
    "The request took too long",
    "Unexpected token < in JSON at position 413",
    "400 messages.167: `tool_use` ids were found without `tool_result` blocks immediately after",
    "400 Invalid schema for function 'search': 'token' is not a valid property",
    "400 invalid model",
    "400 参数错误",
    "500 Internal Server Error",
    "529 Overloaded",
    "Error 4001: unknown",
    "",
    None,
]


@pytest.mark.parametrize("history_len", [0, 51])
@pytest.mark.parametrize("error", OVERFLOWS)
def test_refusals_of_long_requests_are_overflows(error, history_len):
    assert is_overflow(error, history_len)
    assert is_overflow(error.upper(), history_len)


@pytest.mark.parametrize("history_len", [0, 51])
@pytest.mark.parametrize("error", OTHERS)
def test_other_errors_are_not_overflows(error, history_len):
    assert not is_overflow(error, history_len)


@pytest.mark.parametrize(
    "error",
    [
        "400 Bad Request",
        "Error code: 400",
        "400 status code (no body)",
        "HTTP Error 400: Bad Request",
        "400 Provider returned error",
        "Client error '400 Bad Request' for url 'https://api.example.com/v1/chat/completions'\n"
        "For more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/400",
        "Error code: 400 - {'error': {'message': 'Bad Request', 'type': 'invalid_request_error', "
        "'param': None, 'code': None}, 'request_id': 'req_011CTWFpbkpKZzpBJezq7xnK'}",
    ],
)
def test_a_400_without_a_reason_is_an_overflow_only_in_a_long_conversation(error):
    assert is_overflow(error, 51)
    assert not is_overflow(error, 50)


@given(error=st.text(max_size=200), history_len=st.integers(0, 1000))
def test_random_text_is_not_an_overflow(error, history_len):
    assert not is_overflow(error, history_len) or re.search("400|413|too|exceed|max", error.lower())


@pytest.mark.parametrize("start", ["input ", "context", "too many tokens", "", "400 "])
@pytest.mark.parametrize("rest", ["1", "1,", "input ", "request (", " ", "status ", "_", "\u4e00"])
def test_matching_does_not_backtrack_on_huge_errors(start, rest):
    # A pattern that matches one of these in several ways would never finish.
    assert not is_overflow(start + rest * 100_000 + "!", 0)
