"""Outbox rows: their lanes, their bodies, and one reply per chat."""

from __future__ import annotations

from hypothesis import given, strategies as st

from hermes.messages import Inbound, InboxRow, Outbound, Source
from hermes.outbound import inbox_reply, lane_of, outbox_rows, reply_rows

CHATS = st.builds(
    Source,
    platform=st.sampled_from(["telegram", "web"]),
    account=st.sampled_from(["", "bot"]),
    chat_id=st.none() | st.sampled_from(["c1", "c2"]),
    thread_id=st.none() | st.sampled_from(["t1"]),
    user_id=st.none() | st.sampled_from(["u1", "u2"]),
)


def row(inbox_id, source, message_id=None):
    inbound = Inbound("key", f"e{inbox_id}", "hi", source, platform_message_id=message_id)
    return InboxRow(inbox_id, inbound, 0, 0.0)


def chat(source):
    return (source.platform, source.account, source.chat_id or "key", source.thread_id or "")


@given(CHATS, CHATS)
def test_a_lane_is_a_chat_whoever_writes_in_it(one, other):
    assert (lane_of(one, "key") == lane_of(other, "key")) == (chat(one) == chat(other))


def test_a_chat_without_an_id_is_its_conversation():
    assert lane_of(Source("web"), "a") == "web//a/"
    assert lane_of(Source("web"), "a") != lane_of(Source("web"), "b")


def test_a_body_has_everything_an_adapter_needs():
    source = Source("telegram", "bot", "c", "group", "t", "u", "name")
    assert outbox_rows(source, "key", "s1", "hello", "notice", "m1") == [
        Outbound(
            "telegram/bot/c/t",
            {
                "kind": "notice",
                "text": "hello",
                "platform": "telegram",
                "account": "bot",
                "chat_id": "c",
                "thread_id": "t",
                "user_id": "u",
                "session_id": "s1",
                "reply_to": "m1",
            },
        )
    ]


def test_an_empty_reply_is_not_sent():
    message = row(1, Source("telegram", chat_id="c"), "m1")
    assert reply_rows(message, "s", "") == []
    (found,) = reply_rows(message, "s", "hi")
    assert (found.body["kind"], found.body["reply_to"]) == ("reply", "m1")


@given(st.lists(CHATS, min_size=1, max_size=6))
def test_the_last_message_of_each_chat_is_replied_to(sources):
    rows = [row(number, source, f"m{number}") for number, source in enumerate(sources)]
    found = inbox_reply(rows, "s", "too many messages")
    assert found.session_key == "key"
    assert list(found.inbox_ids) == list(range(len(rows)))
    last = {chat(source): f"m{number}" for number, source in enumerate(sources)}
    assert sorted(each.body["reply_to"] for each in found.outbox) == sorted(last.values())
    assert len({each.lane for each in found.outbox}) == len(found.outbox)
    assert inbox_reply(rows, "s", "").outbox == []
