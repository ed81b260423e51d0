"""Attached files: who may read one, what keeps it, and what is refused."""

from __future__ import annotations

import os
import re

import pytest
import trio
from msgspec.structs import replace

from hermes.config import AttachmentLimits
from hermes.errors import AttachmentRefused, EventConflict, UnknownFile
from hermes.messages import Attachment, Inbound, Message, Outbound, TurnCommit
from hermes.store import Rotation
from hermes.store.attachments.rows import GONE, clean_name
from tests.support.attachments import (
    HOUR,
    blob_names,
    content,
    digest,
    lose_contents,
    png,
    put,
    referenced,
    rows_without_blob,
    staged_names,
)
from tests.support.stores import KINDS, open_kind

DATA = b"hello"


def store_file(store, data=DATA, key="k", name="a.txt", **options):
    return store.put_file(Attachment(data=data, name=name), session_key=key, **options)


def say(store, *files, event="e1", key="k", **options):
    """Accept a message that names these files."""
    parts = tuple(file.part for file in files)
    return store.accept(Inbound(key, event, "look", parts=parts, **options))


def turn(accepted, rows=None, files=(), **changes):
    """The turn that answers a message, by default with its own parts in the transcript."""
    receipt, inbound = accepted.receipt, accepted.inbound
    said = Message("user", inbound.text, parts=inbound.parts)
    replied = {"text": "seen", **({"files": [file.part for file in files]} if files else {})}
    finished = TurnCommit(
        session_key=receipt.session_key,
        session_id=receipt.session_id,
        epoch=receipt.epoch,
        revision=accepted.head.revision,
        inbox_ids=[receipt.inbox_id],
        rows=rows or (said, Message("assistant", "seen")),
        outbox=[Outbound("chat", replied)],
    )
    return replace(finished, **changes)


def converse(store, *files, event="e1", key="k"):
    """Say something with these files and commit the turn. Returns the id of the session."""
    return store.commit_turn(turn(say(store, *files, event=event, key=key))).head.session_id


def sent(store):
    """Mark all replies as sent."""
    store.mark_sent([row.outbox_id for row in store.pending_outbox()])


def can_read(store, file, key):
    try:
        return store.read_file(file.id, session_key=key) == DATA
    except UnknownFile:
        return False


@pytest.fixture
def swept(store, world, path, sql):
    """Sweep an hour later; returns the hashes of the blobs that are left."""

    def sweep():
        world.pass_time(HOUR)
        store.sweep_files()
        assert blob_names(path) == referenced(sql)
        assert list(rows_without_blob(path, sql)) == []
        return blob_names(path)

    return sweep


KEPT, NOTHING = {digest(DATA)}, set()


# Every kind of store


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


async def test_a_file_is_stored_described_read_and_discarded(kind, path, world, sql):
    async with open_kind(kind, path, clock=world.clock) as store:
        image = png(20, 30)
        file = await put(store, image, name="cat.png", principal="telegram:1")
        assert re.fullmatch("file_[0-9a-f]{32}", file.id)
        assert (file.type, file.media_type, file.size) == ("image", "image/png", len(image))
        assert (file.name, file.width, file.height) == ("cat.png", 20, 30)
        assert await content(store, file.id) == image
        assert (await store.get_file(file.id, session_key="k"))[0] == file
        again = await put(store, image, name="dog.png")
        assert again.id != file.id
        assert blob_names(path) == {digest(image)}  # once
        assert staged_names(path) == set()
        assert not await store.discard_file(file.id, session_key="other")
        assert await store.discard_file(file.id, session_key="k")
        assert not await store.discard_file(file.id, session_key="k")
        with pytest.raises(UnknownFile):
            await content(store, file.id)
        assert await content(store, again.id) == image
        assert sql("SELECT principal FROM files") == [[None]]
        assert await store.discard_file(again.id, session_key="k")
        assert blob_names(path) == set()
        assert sql("SELECT count(*) FROM blobs") == [[0]]


async def test_a_sweep_spares_what_is_younger_than_an_hour(kind, path, world):
    async with open_kind(kind, path, clock=world.clock) as store:
        file = await put(store)
        world.pass_time(3599)
        assert await store.sweep_files() == 0
        assert await content(store, file.id) == DATA
        world.pass_time(2)
        assert await store.sweep_files() == 1
        assert blob_names(path) == set()
        with pytest.raises(UnknownFile):
            await content(store, file.id)


@pytest.mark.sqlite_only("puts files into the folder of attached files")
async def test_content_without_a_row_is_spared_for_an_hour(kind, path, world):
    async with open_kind(kind, path, clock=world.clock) as store:
        folder = path.with_name(f"{path.name}.blobs")  # as a process that was killed leaves it
        blob, incoming = folder / digest(DATA)[:2] / digest(DATA), folder / "incoming" / "left"
        for left in (blob, incoming):
            left.parent.mkdir(parents=True)
            left.write_bytes(DATA)
            os.utime(left, (world.now, world.now))
        world.pass_time(3599)
        assert await store.sweep_files() == 0
        assert (blob_names(path), staged_names(path)) == (KEPT, {"left"})
        world.pass_time(2)
        assert await store.sweep_files() == 2
        assert blob_names(path) == staged_names(path) == set()


async def test_a_blob_that_is_deleted_behind_the_store_is_an_unknown_file(kind, path, world):
    async with open_kind(kind, path, clock=world.clock) as store:
        file = await put(store)
        lose_contents(path)
        with pytest.raises(UnknownFile):
            await content(store, file.id)
        again = await put(store)
        assert await content(store, again.id) == await content(store, file.id) == DATA


@pytest.mark.parametrize("damaged", [b"cut", DATA[::-1]])
@pytest.mark.sqlite_only("puts files into the folder of attached files")
async def test_a_damaged_blob_is_written_again(kind, damaged, path, world, sql):
    async with open_kind(kind, path, clock=world.clock) as store:
        await put(store)
        blob = path.with_name(f"{path.name}.blobs") / digest(DATA)[:2] / digest(DATA)
        blob.write_bytes(damaged)
        await put(store)
        assert list(rows_without_blob(path, sql)) == []
        assert blob.read_bytes() == DATA


@pytest.mark.sqlite_only("puts files into the folder of attached files")
async def test_a_folder_that_a_sweep_cannot_read_delays_nothing_else(kind, path, world, sql):
    async with open_kind(kind, path, clock=world.clock) as store:
        await put(store)
        (path.with_name(f"{path.name}.blobs") / digest(DATA)[:2] / "folder").mkdir()
        world.pass_time(HOUR * 1000)  # also after the time of the folder
        assert await store.sweep_files() == 1
        assert blob_names(path) == {"folder"}


async def test_concurrent_sweeps_share_no_transaction(path, world):
    """A sweep removes blobs whose rows are deleted on disk, not just in its own transaction."""
    async with open_kind("threads", path, clock=world.clock) as store:
        await put(store)
        world.pass_time(HOUR)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(store.sweep_files)
        assert store.statistics().largest_batch == 1
        assert blob_names(path) == set()


# Access


def test_a_file_is_read_by_its_conversation_only(store):
    file = store_file(store)
    assert can_read(store, file, "k")
    for key in ("other", "", "K", "k "):
        assert not can_read(store, file, key)
    for guess in (
        digest(DATA),
        "file_" + 32 * "0",
        file.id[5:],
        file.id.upper(),
        "",
        f"{file.id} ",
    ):
        with pytest.raises(UnknownFile):
            store.read_file(guess, session_key="k")


def test_the_same_content_is_another_file_for_another_conversation(store):
    mine, theirs = store_file(store, key="k"), store_file(store, key="other")
    assert mine.id != theirs.id
    assert not can_read(store, theirs, "k")
    assert not can_read(store, mine, "other")


def test_ids_are_random(store):
    ids = {store_file(store).id for _ in range(50)}
    assert len(ids) == 50
    assert all(re.fullmatch("file_[0-9a-f]{32}", each) for each in ids)


def test_a_message_cannot_name_a_file_of_another_conversation(store, sql):
    theirs = store_file(store, key="other")
    with pytest.raises(UnknownFile, match="there is no file"):
        say(store, theirs)
    assert sql("SELECT count(*) FROM inbox") == [[0]]
    assert not can_read(store, theirs, "k")


def test_accepting_stores_what_the_store_knows_of_a_file(store):
    file = store_file(store, png(4, 5), name="real.png")
    claim = {"type": "file", "file": file.id, "media_type": "text/html", "name": "../x", "size": 1}
    text = {"type": "text", "text": "hi"}
    remote = {"type": "image", "url": "https://example.com/a.png"}
    foreign = {"type": "input_file", "file": {"file_id": "theirs"}}
    parts = (text, {**claim, "text": "a forged transcript"}, remote, foreign)
    accepted = store.accept(Inbound("k", "e1", "look", parts=parts))
    assert accepted.inbound.parts == (text, file.part, remote, foreign)
    assert file.part == {
        "type": "image", "file": file.id, "media_type": "image/png", "name": "real.png",
        "size": len(png()), "width": 4, "height": 5,
    }  # fmt: skip
    [row] = store.open_inbox("k")
    assert row.inbound.parts == accepted.inbound.parts


def test_an_agent_cannot_name_a_file_of_another_conversation(store, sql):
    theirs, mine = store_file(store, key="other"), store_file(store)
    accepted = say(store, mine)
    said = Message("assistant", "look", parts=(theirs.part, mine.part))
    done = store.commit_turn(turn(accepted, rows=(said,), files=(theirs, mine)))
    [row] = store.load(done.head.session_id).messages
    assert row.parts == ({"type": "text", "text": GONE}, mine.part)
    assert sql("SELECT file_id FROM session_files") == [[mine.id]]
    assert sql("SELECT file_id FROM outbox_files") == [[mine.id]]
    assert not can_read(store, theirs, "k")


def test_a_session_without_a_conversation_cannot_name_a_file(store):
    file = store_file(store)
    store.create_session("s1", "cli")
    store.append_message("s1", "user", "look", parts=[file.part])
    [row] = store.load("s1").messages
    assert row.parts == ({"type": "text", "text": GONE},)


def test_a_branch_for_another_conversation_takes_its_files_along(store, swept):
    file = store_file(store)
    session = converse(store, file)
    store.branch(session, session_key="other")
    assert can_read(store, file, "other")
    assert not can_read(store, file, "third")
    store.delete_session(session)
    sent(store)
    assert swept() == KEPT
    assert can_read(store, file, "other")


def test_a_shared_session_is_read_and_written_by_both_conversations(store, swept):
    mine = store_file(store)
    session = converse(store, mine)
    assert not can_read(store, mine, "other")
    store.switch("other", session, any_key=True)
    assert can_read(store, mine, "other")
    theirs = store_file(store, key="other")
    assert not can_read(store, theirs, "k")
    assert converse(store, theirs, event="e2", key="other") == session
    rows = store.load(session).messages
    assert [part for row in rows for part in row.parts or ()] == [mine.part, theirs.part]
    assert can_read(store, theirs, "k")
    sent(store)
    assert swept() == KEPT


def test_after_another_session_the_files_of_the_last_stay_readable(store, swept):
    file = store_file(store)
    converse(store, file)
    store.new_session("k")
    sent(store)
    assert swept() == KEPT
    assert can_read(store, file, "k")


# Repeated events


def test_a_repeated_event_with_the_same_content_is_the_same_message(store, sql):
    first = say(store, store_file(store), per_conversation=True)
    again = say(store, store_file(store), per_conversation=True)
    assert again.duplicate
    assert again.receipt == first.receipt
    assert len(sql("SELECT * FROM inbox_files")) == 1
    store.commit_turn(turn(first))
    assert say(store, store_file(store), per_conversation=True).duplicate


@pytest.mark.parametrize(
    "change", [{"data": b"other"}, {"name": "b.txt"}], ids=["content", "name"]
)  # fmt: skip
def test_a_repeated_event_with_another_file_is_a_conflict(store, change):
    say(store, store_file(store), per_conversation=True)
    with pytest.raises(EventConflict):
        say(store, store_file(store, **change), per_conversation=True)
    with pytest.raises(EventConflict):
        say(store, per_conversation=True)
    with pytest.raises(EventConflict):
        say(store, store_file(store), store_file(store, b"2"), per_conversation=True)


# What keeps a file


def test_an_open_message_keeps_its_files_and_a_finished_one_in_the_transcript(store, swept, sql):
    file = store_file(store)
    accepted = say(store, file)
    assert swept() == KEPT
    done = store.commit_turn(turn(accepted))
    assert sql("SELECT * FROM inbox_files") == []
    sent(store)
    assert swept() == KEPT
    store.delete_session(done.head.session_id)
    assert swept() == NOTHING


def test_a_turn_that_drops_the_file_does_not_keep_it(store, swept):
    accepted = say(store, store_file(store))
    store.commit_turn(turn(accepted, rows=(Message("user", "look"),)))
    assert swept() == NOTHING


def test_a_withdrawn_message_does_not_keep_its_files(store, swept):
    accepted = say(store, store_file(store))
    store.withdraw("k", accepted.receipt.inbox_id)
    assert swept() == NOTHING


def test_a_parked_message_keeps_its_files(store, swept):
    accepted = say(store, store_file(store))
    store.park_inbox([accepted.receipt.inbox_id], "too many attempts")
    assert swept() == KEPT


def test_a_file_of_a_running_turn_is_kept_until_its_commit(path, world, sql):
    async def live():
        async with open_kind("inline", path, clock=world.clock) as store:
            accepted = await store.accept(Inbound("k", "e1", "draw"))
            file = await put(store, turn_id=accepted.receipt.inbox_id)
            foreign = await put(store, b"2", key="other", turn_id=accepted.receipt.inbox_id)
            world.pass_time(HOUR)
            await store.sweep_files()
            assert blob_names(path) == KEPT
            with pytest.raises(UnknownFile):
                await content(store, foreign.id, key="other")
            said = Message("assistant", "here", parts=(file.part,))
            await store.commit_turn(turn(accepted, rows=(said,), files=(file,)))
            assert sql("SELECT * FROM inbox_files") == []
            assert await content(store, file.id) == DATA

    trio.run(live)


def test_an_unsent_reply_keeps_its_files_and_a_sent_one_does_not(store, swept, sql):
    file = store_file(store)
    done = store.commit_turn(turn(say(store), files=(file,)))
    store.delete_session(done.head.session_id)
    [reply] = store.pending_outbox()
    assert swept() == KEPT
    store.mark_sending([reply.outbox_id])
    store.mark_unsent([reply.outbox_id])
    assert swept() == KEPT
    assert can_read(store, file, "k")
    sent(store)
    assert sql("SELECT * FROM outbox_files") == []
    assert swept() == NOTHING


def test_a_dead_reply_keeps_its_files_until_it_is_deleted(store, swept, world):
    store.commit_turn(turn(say(store), files=(store_file(store),)))
    [reply] = store.pending_outbox()
    store.mark_dead([reply.outbox_id], "rejected")
    assert swept() == KEPT
    world.pass_time(400 * 86400)
    while store.forget_closed():
        pass
    assert swept() == NOTHING


def test_a_rewind_and_an_edit_keep_the_files_of_hidden_rows(store, swept):
    file = store_file(store)
    session = converse(store, file)
    sent(store)
    first = store.load(session).messages[0].id
    store.edit_message(session, first, "look again")
    edited = store.load(session).messages[0]
    assert (edited.content, edited.parts) == ("look again", (file.part,))
    store.rewind(session, edited.id)
    assert store.load(session).messages == []
    assert swept() == KEPT
    assert can_read(store, file, "k")


def test_a_branch_keeps_the_files_of_its_rows(store, swept):
    file = store_file(store)
    session = converse(store, file)
    sent(store)
    branch = store.branch(session)
    store.delete_session(session)
    assert store.load(branch).messages[0].parts == (file.part,)
    assert swept() == KEPT
    store.delete_session(branch)
    assert swept() == NOTHING


def test_a_rotation_keeps_the_files_of_its_past_and_carries_those_of_its_rows(store, swept):
    old, new = store_file(store), store_file(store, b"new")
    session = converse(store, old)
    upto = store.load(session).messages[-1].id
    converse(store, new, event="e2")
    head = store.head(session)
    rotated = store.rotate(
        Rotation(
            session_id=session,
            messages=(Message("user", "summary", parts=(old.part,)),),
            rotation_id="r1",
            rewrites=head.rewrites,
            upto=upto,
        )
    )
    sent(store)
    carried = store.load(rotated.session_id).messages
    assert [part for row in carried for part in row.parts or ()] == [old.part, new.part]
    assert swept() == {digest(DATA), digest(b"new")}
    store.delete_session(session)
    assert swept() == {digest(DATA), digest(b"new")}
    store.delete_session(rotated.session_id)
    assert swept() == NOTHING


def test_a_pruned_session_does_not_keep_its_files(store, swept, world):
    session = converse(store, store_file(store))
    sent(store)
    store.new_session("k")
    store.end_session(session, "closed")
    world.pass_time(100 * 86400)
    assert store.prune_sessions(older_than_days=90).session_ids == (session,)
    assert swept() == NOTHING


def test_a_file_that_a_message_names_cannot_be_discarded(store):
    file = store_file(store)
    say(store, file)
    assert not store.discard_file(file.id, session_key="k")
    assert can_read(store, file, "k")


def test_the_same_content_is_kept_for_the_other_file(store, swept):
    mine, theirs = store_file(store), store_file(store, key="other")
    session = converse(store, mine)
    say(store, theirs, key="other", event="e2")
    sent(store)
    store.delete_session(session)
    assert swept() == KEPT
    assert can_read(store, theirs, "other")
    assert not can_read(store, mine, "k")


# Limits


LIMITS = AttachmentLimits(
    message_files=2,
    message_bytes=100,
    conversation_files=4,
    conversation_bytes=250,
    principal_files=6,
    principal_bytes=400,
    max_pixels=100,
    types=("image/*", "text/plain"),
)


@pytest.fixture
async def limited(path, world):
    async with open_kind("inline", path, clock=world.clock, limits=LIMITS) as opened:
        yield opened


async def refuses(store, data, words, **options):
    with pytest.raises(AttachmentRefused, match=words):
        await put(store, data, **options)


async def test_a_type_that_is_not_accepted_is_refused(limited, path):
    await refuses(limited, b"%PDF-1.7\n", "application/pdf are not accepted")
    await refuses(limited, b"\x00\x01\x02", "application/octet-stream are not accepted")
    await put(limited, png())
    await put(limited, b"text")
    assert len(blob_names(path)) == 2
    assert staged_names(path) == set()


async def test_a_small_file_with_a_huge_image_is_refused(limited):
    await put(limited, png(10, 10))
    await refuses(limited, png(11, 10), "more than 100 pixels")
    await refuses(limited, png(2**32 - 1, 2**32 - 1), "more than 100 pixels")


async def test_the_files_of_a_message_are_limited(limited):
    await refuses(limited, b"x" * 101, "larger than 100 bytes")
    files = [await put(limited, bytes([65 + n]) * 40) for n in range(3)]
    parts = tuple(file.part for file in files)
    with pytest.raises(AttachmentRefused, match="2 files, not 3"):
        await limited.accept(Inbound("k", "e1", "look", parts=parts))
    large = await put(limited, b"x" * 61)
    with pytest.raises(AttachmentRefused, match="101 bytes together"):
        await limited.accept(Inbound("k", "e1", "look", parts=(parts[0], large.part)))
    twice = (parts[0], parts[0], parts[1])  # a file counts once
    assert (await limited.accept(Inbound("k", "e1", "look", parts=twice))).inbound.parts == twice


async def test_the_files_of_a_conversation_are_limited(limited):
    for _ in range(2):
        await put(limited, b"x" * 100)
    await refuses(limited, b"x" * 51, "files of this conversation")
    await put(limited, b"x" * 50)
    await put(limited, b"x" * 50, key="other")
    for _ in range(3):
        await put(limited, b"x", key="other")
    await refuses(limited, b"x", "4 files", key="other")


async def test_the_files_of_a_user_are_limited_in_all_conversations(limited):
    for n in range(4):
        await put(limited, b"x" * 99, key=f"k{n}", principal="telegram:1")
    await refuses(limited, b"x" * 5, "files of this user", key="k5", principal="telegram:1")
    for n in range(2):
        await put(limited, b"x", key=f"k{n}", principal="telegram:1")
    await refuses(limited, b"x", "6 files", key="k6", principal="telegram:1")
    await put(limited, b"x", key="k6", principal="telegram:2")
    await put(limited, b"x", key="k6")


async def test_a_refused_file_leaves_nothing(limited, path, sql):
    await refuses(limited, b"%PDF-1.7\n", "not accepted")
    assert blob_names(path) == staged_names(path) == set()
    assert sql("SELECT * FROM blobs") == sql("SELECT * FROM files") == []


# Names


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("a.txt", "a.txt"),
        ("résumé ☃.pdf", "résumé ☃.pdf"),
        ("/etc/passwd", "passwd"),
        ("../../x", "x"),
        ("C:\\Users\\me\\x.doc", "x.doc"),
        ("..\\x", "x"),
        ("c:x", "c_x"),
        (".bashrc", "bashrc"),
        ("x.txt...", "x.txt"),
        (" x ", "x"),
        ("a\nb\tc.txt", "a b c.txt"),
        ("a\x00b\x1b[31m", "a�b␛[31m"),
        ("gpj.\u202eexe", "gpj.exe"),
        ("\u2066a\u2069\u200f.txt", "a.txt"),
        ("\ud800.txt", "_.txt"),
        ('a<b>c:"d|e?f*.txt', "a_b_c__d_e_f_.txt"),
        ("CON", "_CON"),
        ("nul.txt", "_nul.txt"),
        ("Com1 .tar.gz", "_Com1 .tar.gz"),
        ("console.txt", "console.txt"),
        (".", None),
        ("..", None),
        ("....", None),
        ("a/", None),
        ("/", None),
        ("", None),
        (None, None),
        ("\u202e", None),
        ("x" * 300, "x" * 200),
        ("x" * 300 + ".txt", "x" * 196 + ".txt"),
        ("é" * 300 + ".txt", "é" * 98 + ".txt"),
        ("x" * 300 + "." + "y" * 30, "x" * 200),
        ("a." + "y" * 300, "a." + "y" * 198),
        ("." * 300 + "a", "a"),
    ],
)
def test_a_name_is_made_safe(store, name, stored):
    assert clean_name(name) == stored
    assert store_file(store, name=name).name == stored
    if stored is not None:
        assert len(stored.encode()) <= 200
        assert clean_name(stored) == stored
