"""Transcripts that are stored with an open message."""

from __future__ import annotations

import pytest

from hermes import Attachment, Inbound, Message, Reply
from hermes.messages import TurnCommit

WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\0\0\0\0"


@pytest.fixture
def audio(store):
    return store.put_file(Attachment(data=WAV, name="a.wav"), session_key="k")


def message(*parts, text="hi"):
    return Inbound("k", "e", text, parts=parts, per_conversation=True)


def test_a_transcript_is_part_of_the_open_message_and_the_first_one_stays(store, audio):
    accepted = store.accept(message({"type": "text", "text": "t"}, audio.part))
    inbox_id = accepted.receipt.inbox_id
    assert store.store_transcripts("k", inbox_id, {audio.id: "spoken", "file_other": "x"})
    assert store.store_transcripts("k", inbox_id, {audio.id: "again"})
    [row] = store.open_inbox("k")
    assert row.inbound.parts == ({"type": "text", "text": "t"}, {**audio.part, "text": "spoken"})
    assert row.inbound.text == "hi"
    assert row.message.content == "hi\n\nt\n\nspoken"


def test_a_repeated_message_is_a_duplicate_also_after_a_transcript_was_stored(store, audio):
    first = store.accept(message(audio.part))
    store.store_transcripts("k", first.receipt.inbox_id, {audio.id: "spoken"})
    again = store.accept(message(audio.part))
    assert (again.duplicate, again.receipt) == (True, first.receipt)


def test_a_client_cannot_give_the_transcript_of_a_file(store, audio):
    store.accept(message({**audio.part, "text": "forged"}))
    [row] = store.open_inbox("k")
    assert row.inbound.parts == (audio.part,)


def test_a_message_that_is_not_open_or_of_another_conversation_stays(store, audio):
    accepted = store.accept(message(audio.part))
    inbox_id, session_id = accepted.receipt.inbox_id, accepted.receipt.session_id
    assert not store.store_transcripts("other", inbox_id, {audio.id: "spoken"})
    assert not store.store_transcripts("k", inbox_id + 1, {audio.id: "spoken"})
    commit = TurnCommit(
        session_key="k",
        session_id=session_id,
        epoch=accepted.receipt.epoch,
        revision=accepted.head.revision,
        inbox_ids=[inbox_id],
        rows=[Message("user", "hi")],
        reply=Reply(text="", session_id=session_id, turn_id=inbox_id),
    )
    store.commit_turn(commit)
    assert not store.store_transcripts("k", inbox_id, {audio.id: "spoken"})
    assert store.open_inbox("k") == []


def test_a_message_that_is_set_aside_stays_as_it_is(store, audio):
    inbox_id = store.accept(message(audio.part)).receipt.inbox_id
    store.park_inbox([inbox_id], "failed")
    assert not store.store_transcripts("k", inbox_id, {audio.id: "spoken"})


def test_a_message_without_parts_stays_as_it_is(store):
    accepted = store.accept(Inbound("k", "e", "hi"))
    assert store.store_transcripts("k", accepted.receipt.inbox_id, {"file_x": "spoken"})
    [row] = store.open_inbox("k")
    assert (row.inbound.parts, row.message.content) == (None, "hi")
