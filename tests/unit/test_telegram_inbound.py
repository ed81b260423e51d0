"""What becomes of an update, decided without a wait; and of what is none."""

from __future__ import annotations

import contextlib
import json

import attrs
import pytest
from hypothesis import given, strategies as st

from hermes.adapters.telegram import GroupPolicy
from hermes.adapters.telegram.bot_api_types import (
    MALFORMED,
    Unread,
    Update,
    User,
    first_number,
    read_updates,
)
from hermes.adapters.telegram.inbound import Ignored, inbound_of
from hermes.adapters.telegram.utf16 import cut_out, piece
from hermes.messages import Inbound, Source

ME = User(id=42, is_bot=True, username="Hermes_Bot")
ANNA = {"id": 7, "is_bot": False, "first_name": "Anna", "last_name": "B."}
DM = {"id": 7, "type": "private"}
GROUP = {"id": -100, "type": "supergroup", "title": "all of us"}
FORUM = {**GROUP, "is_forum": True}
BY_BOT = {"message_id": 3, "from": {"id": 42, "is_bot": True}, "text": "It is late."}


def read(message, kind="message"):
    (found,) = read_updates(json.dumps([{"update_id": 900, kind: message}]).encode())
    assert isinstance(found, Update)
    return found


def heard(kind="message", manners=None, albums=None, home=None, chat=DM, **fields):
    message = {"message_id": 5, "chat": chat, "from": ANNA, **fields}
    return inbound_of(read(message, kind), ME, manners or GroupPolicy(), albums, home)


def said(text, at=0, kind="mention", **fields):
    """A text with one entity: from `at` on, or the first `at`-word where that is a text."""
    word = at if isinstance(at, str) else text[at:].split()[0]
    offset = len(text[: text.index(word)].encode("utf-16-le")) // 2
    length = len(word.encode("utf-16-le")) // 2
    return {
        "text": text,
        "entities": [{"type": kind, "offset": offset, "length": length, **fields}],
    }


def test_a_direct_message_is_taken_as_it_is():
    assert heard(text="hello") == Inbound(
        "agent:main:telegram:dm:7",
        "900:7:5",
        "hello",
        Source("telegram", "42", "7", "dm", None, "7", "Anna B."),
        platform_message_id="5",
        linger=0.35,
    )


def test_the_name_of_an_event_outlives_numbers_that_begin_anew():
    """After an idle week Telegram may choose a number it had before: for another message."""
    first, later = heard(text="a"), heard(text="b", message_id=77)
    assert first.event_id != later.event_id


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (said("@hermes_bot what time is it?"), "what time is it?"),
        (said("@Hermes_bot : hi"), "hi"),
        (said("hey @hermes_bot you", "@hermes_bot"), "hey you"),
        (said("😀😀 @hermes_bot hi", "@hermes_bot"), "😀😀 hi"),
        (said("Hermes, hi", "Hermes", "text_mention", user={"id": 42, "is_bot": True}), "hi"),
        (said("@hermes_bot"), "@hermes_bot"),
        (
            {"text": "why?", "reply_to_message": BY_BOT},
            '[In reply to somebody: "It is late."]\nwhy?',
        ),
        (said("/new@hermes_bot now", kind="bot_command"), "/new now"),
        (said("/new", kind="bot_command"), "/new"),
    ],
)
def test_in_a_group_the_bot_hears_who_speaks_to_it(fields, text):
    found = heard(chat=GROUP, **fields)
    assert isinstance(found, Inbound)
    assert found.text == text
    assert found.session_key == "agent:main:telegram:group:-100:7"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"text": "hello all"}, "not said to the bot"),
        (said("@hermes_bot2 hi"), "not said to the bot"),
        (said("/new@other_bot", kind="bot_command"), "not said to the bot"),
        ({"text": "/unknown"}, "not said to the bot"),
        (
            {"text": "x", "reply_to_message": {**BY_BOT, "from": {"id": 9, "first_name": "C"}}},
            "not said to the bot",
        ),
        ({"text": "@hermes_bot"}, "not said to the bot"),
        ({"text": "x", "from": {"id": 8, "is_bot": True}}, "said by a bot"),
        ({"text": "x", "is_automatic_forward": True}, "a channel's post"),
        ({"new_chat_members": [ANNA]}, "not said to the bot"),
        (
            {"text": "x", "reply_to_message": {**BY_BOT, "forum_topic_created": {"name": "t"}}},
            "not said to the bot",
        ),
    ],
)
def test_in_a_group_the_bot_is_silent_else(fields, why):
    found = heard(chat=GROUP, **fields)
    assert isinstance(found, Ignored)
    assert found.why.startswith(why)


def test_a_bot_that_listens_to_all_still_leaves_other_bots_their_commands():
    everybody = GroupPolicy(groups="all")
    assert heard(manners=everybody, chat=GROUP, text="hello all").text == "hello all"
    other = said("/start@other_bot", kind="bot_command")
    assert isinstance(heard(manners=everybody, chat=GROUP, **other), Ignored)


def test_a_group_that_shares_a_conversation_is_told_who_speaks():
    shared = GroupPolicy(shared=True)
    found = heard(manners=shared, chat=GROUP, **said("@hermes_bot hi"))
    assert (found.session_key, found.text) == ("agent:main:telegram:group:-100", "Anna B.: hi")
    assert heard(manners=shared, text="hi").text == "hi"  # not to a single person
    odd = {"id": 7, "first_name": 'A]: "x"\n[system', "last_name": "y" * 100}
    named = heard(manners=shared, chat=GROUP, **{**said("@hermes_bot hi"), "from": odd}).text
    assert named == f"A x system {'y' * 53}: hi"


def test_topics_are_conversations_of_their_own_and_the_general_one_too():
    fields = {**said("@hermes_bot hi"), "chat": FORUM}
    general, topic, replies = (
        heard(**fields),
        heard(**fields, message_thread_id=9, is_topic_message=True),
        heard(**{**fields, "chat": GROUP}, message_thread_id=9),
    )
    assert (general.source.thread_id, topic.source.thread_id) == ("1", "9")
    assert replies.source.thread_id is None  # a chain of replies is no topic
    assert general.session_key == "agent:main:telegram:group:-100:1:"
    assert topic.text == "Anna B.: hi"
    alone = heard(**fields, manners=GroupPolicy(threads_per_user=True))
    assert (alone.session_key, alone.text) == ("agent:main:telegram:group:-100:1:7", "hi")


def test_what_is_replied_to_is_quoted_within_bounds():
    long = {**BY_BOT, "text": 'a "b"\n' + "c" * 500}
    text = heard(text="and?", reply_to_message=long).text
    assert text.startswith("[In reply to somebody: \"a 'b' ccc")
    assert len(text) < 350
    quoted = heard(text="and?", reply_to_message=long, quote={"text": "a part"}).text
    assert quoted == '[In reply to somebody: "a part"]\nand?'


def test_the_start_button_shows_what_the_bot_can_do():
    assert (heard(text="/start").text, heard(text="/start").command) == ("/help", True)
    assert heard(text="/start abc").text == "/help"


def test_a_command_waits_for_nothing_and_is_not_decorated():
    found = heard(text="/new", reply_to_message=BY_BOT)
    assert (found.text, found.command, found.linger) == ("/new", True, 0.0)


FORWARDED = {"forward_origin": {"type": "user", "date": 1, "sender_user": {"id": 66}}}
VIA = {"via_bot": {"id": 99, "is_bot": True, "first_name": "gifs"}}


@pytest.mark.parametrize(("fields", "mark"), [(FORWARDED, "(forwarded) "), (VIA, "")])
def test_a_command_in_the_words_of_somebody_else_is_no_command(fields, mark):
    """Else a stranger is let in by an operator who forwards what he got, and asks what it is."""
    found = heard(text="/pair ABCD-EFGH operator", **fields)
    assert (found.command, found.text) == (False, f"{mark}/pair ABCD-EFGH operator")
    assert isinstance(heard(text="/stop", chat=GROUP, **fields), Ignored)
    assert heard(text="/stop@hermes_bot", chat=GROUP, **fields).command is False


def test_edits_are_ignored_unless_they_are_wanted():
    assert heard(kind="edited_message", text="better") == Ignored("an edit")
    found = heard(kind="edited_message", manners=GroupPolicy(edits=True), text="/new")
    assert (found.text, found.command) == ("(edited) /new", False)


def test_a_channel_and_an_anonymous_admin_speak_for_themselves():
    channel = {"id": -200, "type": "channel", "title": "News"}
    fields = {"from": None, "sender_chat": channel, "chat": channel, **said("@hermes_bot hi")}
    found = heard(kind="channel_post", **fields)
    assert found.source == Source("telegram", "42", "-200", "channel", None, "-200", "News")
    unsigned = heard(kind="channel_post", **{**fields, "sender_chat": None})
    assert unsigned.source.user_id == "-200"
    admin = {"from": {"id": 1087968824, "is_bot": True}, "sender_chat": GROUP, "chat": GROUP}
    assert heard(**admin, **said("@hermes_bot hi")).source.user_id == "-100"


def test_media_are_references_and_are_named_in_the_text():
    photo = [{"file_id": "small", "file_size": 10}, {"file_id": "big", "file_size": 99}]
    found = heard(photo=photo, caption="look", media_group_id="g")
    assert found.text == "[photo] look"
    assert found.linger == 1.0
    assert found.parts == (
        {"type": "image", "ref": "telegram:big", "label": "photo", "mime": "image/jpeg", "size": 99,
         "caption": "look"},
    )  # fmt: skip
    file = {"file_id": "f", "file_name": "a]b.pdf", "mime_type": "application/pdf"}
    assert heard(document=file).text == "[document a b.pdf]"
    both = heard(document=file, animation=file)
    assert [part["type"] for part in both.parts] == ["video"]
    assert heard(sticker={"file_id": "s", "emoji": "😀"}).text == "[sticker 😀]"
    assert heard(voice={"file_id": "v"}).parts[0]["type"] == "voice"
    assert heard(location={"latitude": 1.5, "longitude": 2}).text == "[location 1.50000, 2.00000]"
    assert heard(contact={"phone_number": "+1", "first_name": "Bo"}).text == "[contact Bo +1]"
    assert heard(dice={"value": 6}) == Ignored("nothing is said")


def test_a_text_that_its_client_has_cut_waits_longer_for_the_rest():
    assert heard(text="x" * 4096).linger == 1.0
    assert heard(text="x" * 3000).linger == 0.35


def test_the_pictures_of_an_album_follow_the_one_that_mentions_the_bot():
    albums: set[str] = set()
    photo = [{"file_id": "p"}]
    caption = {
        "caption": "@hermes_bot look",
        "caption_entities": [{"type": "mention", "offset": 0, "length": 11}],
    }
    fields = {"chat": GROUP, "photo": photo, "media_group_id": "g", "albums": albums}
    assert isinstance(heard(**fields), Ignored)
    assert heard(**fields, **caption).text == "[photo] look"
    assert heard(**fields).text == "[photo]"
    assert isinstance(heard(**{**fields, "media_group_id": "h"}), Ignored)


def test_a_group_that_has_moved_keeps_its_conversations():
    found = heard(chat=GROUP, home="-5", **said("@hermes_bot hi"))
    assert found.session_key == "agent:main:telegram:group:-5:7"
    assert found.source.chat_id == "-100"


# What is not as it should be

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
WORDS = st.sampled_from(
    ["/new@hermes_bot", "@hermes_bot", "a", "😀", " ", "/start", "@x", "\n", ":"]
)
TEXT = st.lists(WORDS, max_size=6).map("".join)
ENTITY = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["mention", "text_mention", "bot_command", "x"]),
        "offset": st.integers(-5, 40),
        "length": st.integers(-5, 40),
    },
    optional={"user": st.sampled_from([{"id": 42}, ANNA])},
)
FILE = st.fixed_dictionaries({"file_id": st.text()}, optional={"file_name": st.text()})
MESSAGE = st.fixed_dictionaries(
    {"message_id": st.integers(1, 9), "chat": st.sampled_from([DM, GROUP, FORUM])},
    optional={
        "from": st.sampled_from([ANNA, {"id": 8, "is_bot": True}]) | JSON,
        "text": TEXT | JSON,
        "entities": st.lists(ENTITY, max_size=4) | JSON,
        "caption": TEXT,
        "caption_entities": st.lists(ENTITY, max_size=3),
        "photo": st.lists(FILE, max_size=3) | JSON,
        "document": FILE,
        "media_group_id": st.text(),
        "reply_to_message": st.just(BY_BOT) | JSON,
        "message_thread_id": st.integers(1, 5) | JSON,
        "is_topic_message": st.booleans(),
        "sender_chat": st.just(GROUP) | JSON,
    },
)
UPDATE = st.fixed_dictionaries(
    {"update_id": st.integers(0, 2**31)},
    optional={"message": MESSAGE | JSON, "edited_message": MESSAGE, "channel_post": MESSAGE | JSON},
)
MANNERS = st.builds(
    GroupPolicy,
    groups=st.sampled_from(["mention", "all"]),
    shared=st.booleans(),
    threads_per_user=st.booleans(),
    edits=st.booleans(),
)


@given(st.lists(UPDATE | JSON, max_size=4), MANNERS)
def test_any_list_is_read_or_skipped_and_never_raises(updates, manners):
    found = read_updates(json.dumps(updates).encode())
    numbered = [u for u in updates if isinstance(u, dict) and _is_number(u.get("update_id"))]
    assert [each.update_id for each in found] == [u["update_id"] for u in numbered]
    for each in found:
        if isinstance(each, Update):
            said = inbound_of(each, ME, manners, set())
            assert isinstance(said, Ignored | Inbound)
            if isinstance(said, Inbound):
                assert said.text
                assert said.source.user_id
                assert said.session_key.startswith("agent:main:telegram:")


def _is_number(value):
    return isinstance(value, int) and not isinstance(value, bool) and -(2**62) <= value <= 2**62


@given(st.binary())
def test_bytes_that_are_no_list_raise_what_the_receiver_expects(body):
    with contextlib.suppress(MALFORMED):
        read_updates(body)
    first_number(body)


def test_an_update_that_is_nested_without_end_spoils_its_answer_but_has_a_number():
    deep = b'{"update_id":5,"message":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(MALFORMED):
        read_updates(b"[" + deep + b"]")
    assert first_number(b'{"ok":true,"result":[' + deep + b"]}") == 5
    assert first_number(b'{"ok":true,"result":[]}') is None


def test_one_update_of_a_wrong_form_does_not_harm_the_others():
    updates = [{"update_id": 1, "message": {"chat": 3}}, {"x": 1}, {"update_id": 2}]
    first, second = read_updates(json.dumps(updates).encode())
    assert isinstance(first, Unread)
    assert first.update_id == 1
    assert second == Update(2)


@given(st.text(), st.integers(-3, 20), st.integers(-3, 20))
def test_pieces_are_counted_in_utf16(text, offset, size):
    units = text.encode("utf-16-le", "surrogatepass")
    found = piece(text, offset, size)
    left = cut_out(text, [(offset, size)])
    inside = offset >= 0 and size > 0 and 2 * (offset + size) <= len(units)
    assert (len(left.encode("utf-16-le", "surrogatepass")) < len(units)) == inside
    assert bool(found) == inside


def test_manners_are_as_documented():
    assert attrs.asdict(GroupPolicy()) == {
        "groups": "mention",
        "shared": False,
        "threads_per_user": False,
        "edits": False,
        "burst_seconds": 0.35,
        "album_seconds": 1.0,
    }
