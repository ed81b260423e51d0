"""Tools, sampling and approvals in OpenAI's formats."""

from __future__ import annotations

import pytest

from hermes.adapters.http.errors import ApiError
from hermes.adapters.http.openai import tools
from hermes.messages import Approval, ApprovalDecision, ToolCall, TurnOptions

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "The weather", "parameters": SCHEMA, "strict": True}
APPROVAL = Approval(7, "key", "key", "pay", '{"euros":5}', "pending", 0.0, 1.0)
HEX = "0123456789abcdef" * 2


def test_both_apis_name_the_same_tool():
    responses = tools.responses_options({"tools": [{"type": "function", **WEATHER}]})
    chat = tools.chat_options({"tools": [{"type": "function", "function": WEATHER}]})
    assert responses.tools == chat.tools == (WEATHER,)
    assert tools.tool_items(responses.tools) == [{"type": "function", **WEATHER}]


def test_a_request_that_asks_for_nothing_has_no_options():
    assert tools.responses_options({"tools": None, "temperature": None}) == TurnOptions()
    assert tools.chat_options({}) == TurnOptions()


def test_sampling_has_the_names_of_chat_completions():
    text = {"verbosity": "low", "format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    read = tools.responses_options(
        {
            "temperature": 0.5,
            "reasoning": {"effort": "high"},
            "text": text,
            "max_output_tokens": 20,
        },
        "Be brief.",
    )
    assert read == TurnOptions(
        instructions="Be brief.",
        sampling={
            "temperature": 0.5,
            "reasoning_effort": "high",
            "verbosity": "low",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            },
        },
        max_output_tokens=20,
    )
    chat = tools.chat_options({**read.sampling, "max_tokens": 20}, "Be brief.")
    assert chat == read


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("required", "required"),
        (None, None),
        ({"type": "function", "name": "weather"}, {"name": "weather"}),
        ({"type": "function", "function": {"name": "weather"}}, {"name": "weather"}),
    ],
)
def test_a_choice_of_tools(choice, read):
    assert tools.read_choice(choice) == read


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": ["weather"]}, "tools[0]"),
        ({"tools": [{"type": "function", "name": "not a name"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", **WEATHER}] * 2}, "tools"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(body, param):
    with pytest.raises(ApiError) as refused:
        tools.responses_options(body)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_the_refusal_names_a_hosted_tool():
    with pytest.raises(ApiError, match="'web_search'"):
        tools.chat_options({"tools": [{"type": "web_search"}]})


def test_an_answer_names_the_question_that_its_response_had():
    item = tools.approval_item(f"resp_{HEX}", APPROVAL)
    assert item == {
        "type": "mcp_approval_request",
        "id": f"mcpr_{HEX}_7",
        "server_label": "hermes",
        "name": "pay",
        "arguments": '{"euros":5}',
    }
    answer = {"approval_request_id": item["id"], "approve": True, "reason": "cheap"}
    assert tools.decision_of_item(answer) == ApprovalDecision(7, approve=True, reason="cheap")


@pytest.mark.parametrize(
    "answer",
    [
        {"approval_request_id": "7", "approve": True},
        {"approval_request_id": f"mcpr_{HEX}_0", "approve": True},
        {"approval_request_id": f"mcpr_{HEX}_7", "approve": "yes"},
        {},
    ],
)
def test_other_answers_are_refused(answer):
    with pytest.raises(ApiError):
        tools.decision_of_item(answer)


def test_calls_are_the_same_in_both_directions():
    call = ToolCall("call_1", "weather", "{}")
    item = tools.function_call_item("fc_1", call)
    assert tools.call_of_item(item) == call
    message = {"role": "assistant", "tool_calls": tools.chat_tool_calls([call])}
    assert tools.calls_of_message(message) == (call,)
