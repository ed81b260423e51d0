"""Messages and usage."""

from __future__ import annotations

import json

import pytest

from hermes.messages import ToolCall, Usage
from hermes.store.import_hermes_agent.importer import Counts
from tests.support.agent_homes import NOW
from tests.support.agent_imports import codes, run_import, texts


def test_every_field_of_a_message_is_imported(home, store):
    home.session("a")
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"a":1}'}}
    odd = {"call_id": "c2", "function": {"name": "stat", "arguments": {"b": 2}}, "extra": 1}
    home.say("a", None, "assistant", tool_calls=json.dumps([call, odd]), reasoning="think",
             reasoning_content="think more", reasoning_details='[{"type": "text"}]',
             finish_reason="tool_calls", token_count=7, codex_reasoning_items='[{"id": "rs"}]',
             api_content="as sent", platform_message_id="tg:1", observed=1)  # fmt: skip
    home.say("a", "done", "tool", tool_call_id="c1", tool_name="read")
    home.say("a", '\x00json:[{"type": "text", "text": "see"}, {"type": "image"}, "bare"]')
    home.say("a", "rewound", active=0)
    home.say("a", "summed up", active=0, compacted=1)
    report = run_import(store, home)
    calls, done, seen = store.get_messages("a")
    assert calls.tool_calls == (
        ToolCall("c1", "read", '{"a":1}'),
        ToolCall("c2", "stat", '{"b":2}'),
    )
    assert (calls.reasoning, calls.finish_reason, calls.token_count) == ("think", "tool_calls", 7)
    assert calls.reasoning_details == ({"type": "text"},)
    assert calls.platform_message_id == "tg:1"
    assert calls.provider_data == {
        "hermes_agent": {
            "api_content": "as sent",
            "codex_reasoning_items": [{"id": "rs"}],
            "observed": True,
            "reasoning_content": "think more",
            "tool_calls": [call, odd],
        }
    }
    assert (done.tool_call_id, done.tool_name, done.content) == ("c1", "read", "done")
    assert seen.parts == ({"type": "text", "text": "see"}, {"type": "image"},
                          {"type": "text", "text": "bare"})  # fmt: skip
    assert seen.content == "see\nbare"
    assert texts(store, "a", include_rewound=True)[3:] == ["rewound", "summed up"]
    hidden = store.get_messages("a", include_rewound=True)[-1]
    assert hidden.provider_data == {"hermes_agent": {"compacted": True}}
    assert store.search_messages("rewound") == []
    [hit] = store.search_messages("summed")
    assert (hit.message_id, hit.compacted) == (hidden.id, True)
    assert store.get_session("a").message_count == 3
    assert store.get_session("a").tool_call_count == 2
    assert report.notes == []
    assert report.messages == Counts(imported=5)


INVALID = {
    "tool_calls": '[{"id": "c1", ',
    "reasoning_details": "{]",
    "codex_message_items": "[" * 200 + "]" * 200,
    "content": "\x00json:{nonsense",
}


@pytest.mark.parametrize("column", INVALID)
def test_invalid_json_is_kept_as_text(home, store, column):
    home.session("a")
    home.say("a", INVALID["content"] if column == "content" else "x", "assistant")
    if column != "content":
        home.run(f"UPDATE messages SET {column} = ?", INVALID[column])
    report = run_import(store, home)
    [message] = store.get_messages("a")
    kept = message.content if column == "content" else message.provider_data["hermes_agent"][column]
    assert kept == INVALID[column]
    assert codes(report) == ["bad-json"]


def test_deep_json_within_the_limit_is_kept_as_it_is(home, store):
    home.session("a")
    home.say("a", "x", codex_message_items="[" * 90 + "]" * 90)
    report = run_import(store, home)
    assert report.notes == []
    assert store.export_session("a")


def test_json_that_would_be_too_deep_in_the_store_is_kept_as_text(home, store):
    home.session("a")
    home.say("a", "x", codex_message_items="[" * 98 + "]" * 98)
    assert codes(run_import(store, home)) == ["bad-json"]
    assert len(store.export_session("a")) > 196


def test_lone_surrogates_are_replaced_and_the_call_is_kept(home, store):
    home.session("a")
    call = {"id": "c1", "type": "function", "function": {"name": "say", "arguments": '"\ud83d"'}}
    home.say("a", None, "assistant", tool_calls=json.dumps([call]))
    run_import(store, home)
    assert store.get_messages("a")[0].tool_calls == (ToolCall("c1", "say", '"?"'),)


def test_text_that_is_not_utf8_and_values_of_the_wrong_type(home, store):
    home.session("a")
    home.run(
        "INSERT INTO messages (session_id, role, content, timestamp, token_count, active) "
        "VALUES ('a', 'user', CAST(x'68ff69' AS TEXT), 'yesterday', 'many', 'yes')"
    )
    home.run("INSERT INTO messages (session_id, role, content, timestamp) "
             "VALUES ('a', 5, 17, x'00')")  # fmt: skip
    home.run("UPDATE sessions SET input_tokens = -5, estimated_cost_usd = 'free', cwd = x'ff'")
    report = run_import(store, home)
    first, second = store.get_messages("a")
    assert (first.content, first.timestamp, first.token_count) == ("h\ufffdi", NOW - 1000, None)
    assert (second.role, second.content) == ("5", "17")
    assert codes(report) == ["bad-number", "bad-time", "not-utf8"]
    assert store.get_session("a").input_tokens == 0


@pytest.mark.parametrize("time", [-5.0, 1e300, float("inf"), -float("inf"), None, 1e15])
def test_invalid_times_are_replaced_by_the_previous_one(home, store, time):
    home.session("a", "x")
    home.say("a", "y", timestamp=time)
    home.say("a", "z", timestamp=NOW - 100)
    home.run("UPDATE sessions SET started_at = ?", time)
    report = run_import(store, home)
    assert [m.timestamp for m in store.get_messages("a")] == [NOW - 900, NOW - 900, NOW - 100]
    assert store.get_session("a").started_at == NOW - 900
    assert codes(report) == ["bad-time"]


def test_a_second_live_message_with_one_platform_id_keeps_it(home, store):
    home.session("a")
    home.say("a", "gone", platform_message_id="1", active=0)
    home.say("a", "x", platform_message_id="1")
    home.say("a", "y", platform_message_id="1")
    report = run_import(store, home)
    ids = [m.platform_message_id for m in store.get_messages("a", include_rewound=True)]
    assert (ids, codes(report)) == (["1", "1", "1"], [])


def test_which_of_two_messages_with_one_platform_id_is_live_may_change(home, store):
    home.session("a")
    home.say("a", "first", platform_message_id="1", active=1)
    home.say("a", "second", platform_message_id="1", active=0)
    run_import(store, home)
    for _ in range(2):
        home.run("UPDATE messages SET active = NOT active")
        run_import(store, home)
        [[live]] = home.run("SELECT content FROM messages WHERE active")
        assert texts(store, "a") == [live]
    assert store.integrity_check() == []


def test_a_message_that_is_too_big_is_skipped(home, store):
    home.session("a", "x")
    home.run("INSERT INTO messages (session_id, role, content, timestamp) "
             "VALUES ('a', 'user', zeroblob(67108865), 1)")  # fmt: skip
    home.say("a", "y")
    report = run_import(store, home)
    assert report.messages == Counts(imported=2, skipped=1)
    assert (texts(store, "a"), codes(report)) == (["x", "y"], ["too-big"])


# Usage


def test_usage_is_imported_by_model_and_task(home, store):
    home.session(
        "old", "x", input_tokens=7, actual_cost_usd=0.5, billing_provider="acme", model="m"
    )
    home.session("new", "x", input_tokens=99)
    home.insert("session_model_usage", session_id="new", model="big", billing_provider="",
                input_tokens=5, output_tokens=6, estimated_cost_usd=0.25, task="")  # fmt: skip
    home.insert("session_model_usage", session_id="new", model="small", billing_provider="acme",
                reasoning_tokens=1, task="title_generation")  # fmt: skip
    home.session("called", "x", api_call_count=3)
    run_import(store, home)
    assert store.get_usage("old") == [Usage("turn", "m", "acme", 7, cost=0.5)]
    assert store.get_usage("new") == [
        Usage("turn", "big", None, 5, 6, cost=0.25),
        Usage("title_generation", "small", "acme", reasoning_tokens=1),
    ]
    assert store.get_session("called").api_call_count == 1
    assert store.spent("new", "cli", None).session == 0.25


def test_imported_costs_do_not_count_as_spent_today(home, store):
    home.session("a", "x", estimated_cost_usd=0.25)
    home.run("UPDATE messages SET timestamp = ?", NOW - 2 * 86_400)
    home.run("UPDATE sessions SET started_at = ?", NOW - 2 * 86_400)
    run_import(store, home)
    spent = store.spent("a", "cli", None)
    assert (spent.session, spent.principal, spent.day) == (0.25, 0, 0)
