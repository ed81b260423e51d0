"""Files that are uploaded for themselves: how long they stay, who finds them, how they are used."""

from __future__ import annotations

import pytest

from hermes.config import AttachmentLimits
from hermes.errors import AttachmentRefused, AttachmentTooLarge, UnknownFile
from hermes.messages import Attachment, Inbound, Message, TurnCommit
from hermes.store import open_store
from tests.support.attachments import HOUR, blob_names, content, digest, put
from tests.support.stores import KINDS, open_kind

DATA = b"hello"


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


async def test_a_kept_file_outlives_every_sweep_until_it_is_deleted(kind, path, world):
    async with open_kind(kind, path, clock=world.clock) as store:
        file = await put(store, DATA, key="uploads")
        assert not await store.keep_file(file.id, session_key="other", purpose="user_data")
        assert await store.keep_file(file.id, session_key="uploads", purpose="user_data")
        world.pass_time(1000 * HOUR)
        assert await store.sweep_files() == 0
        assert await content(store, file.id, key="uploads") == DATA
        assert await store.discard_file(file.id, session_key="uploads")
        assert blob_names(path) == set()
        assert await store.find_file(file.id) is None


async def test_a_file_is_found_with_every_key_that_can_read_it(kind, path, world):
    async with open_kind(kind, path, clock=world.clock) as store:
        file = await put(store, DATA, key="a")
        assert (await store.find_file(file.id)).keys == ("a",)
        accepted = await store.accept(Inbound("a", "e1", "look", parts=(file.part,)))
        said = Message("user", "look", parts=(file.part,))
        receipt = accepted.receipt
        await store.commit_turn(
            TurnCommit(
                session_key="a",
                session_id=receipt.session_id,
                epoch=receipt.epoch,
                revision=accepted.head.revision,
                inbox_ids=[receipt.inbox_id],
                rows=(said,),
            )
        )
        await store.new_session("b")
        await store.switch("b", receipt.session_id, any_key=True)
        record = await store.find_file(file.id)
        assert (record.file, record.keys, record.purpose) == (file, ("a", "b"), None)
        assert await store.find_file("file_" + "0" * 32) is None


async def test_kept_files_are_listed_in_pages(kind, path, world):
    async with open_kind(kind, path, clock=world.clock) as store:
        ids = []
        for number in range(5):
            file = await put(store, b"%d" % number, key="uploads")
            purpose = "vision" if number == 2 else "user_data"
            await store.keep_file(file.id, session_key="uploads", purpose=purpose)
            ids.append(file.id)
            world.pass_time(1)
        await put(store, b"not kept", key="uploads")
        other = await put(store, b"other", key="other")
        await store.keep_file(other.id, session_key="other", purpose="user_data")

        async def listed(**options):
            return [each.file.id for each in await store.list_files("uploads", **options)]

        assert await listed() == ids[::-1]
        assert await listed(oldest_first=True) == ids
        assert await listed(limit=2) == ids[:2:-1]
        assert await listed(limit=2, after=ids[3]) == [ids[2], ids[1]]
        assert await listed(after=ids[3], oldest_first=True) == [ids[4]]
        assert await listed(purpose="vision") == [ids[2]]
        assert await listed(after=other.id) == []  # a file of another key


async def test_a_copy_has_the_same_content_and_a_life_of_its_own(kind, path, world):
    async with open_kind(kind, path, clock=world.clock) as store:
        file = await put(store, DATA, key="uploads", name="a.txt")
        await store.keep_file(file.id, session_key="uploads", purpose="user_data")
        copy = await store.copy_file(file.id, session_key="uploads", to="k", principal="p")
        assert copy.id != file.id
        assert (copy.name, copy.media_type, copy.size) == ("a.txt", "text/plain", len(DATA))
        assert blob_names(path) == {digest(DATA)}
        assert (await store.find_file(copy.id)).keys == ("k",)
        with pytest.raises(UnknownFile):
            await store.copy_file(file.id, session_key="k", to="uploads")
        await store.discard_file(file.id, session_key="uploads")
        assert await content(store, copy.id) == DATA
        world.pass_time(HOUR)
        assert await store.sweep_files() == 1


async def test_a_file_that_is_used_again_is_not_copied_again_and_lives_another_hour(
    kind, path, world
):
    async with open_kind(kind, path, clock=world.clock) as store:
        file = await put(store, DATA, key="uploads", name="a.txt")
        await store.keep_file(file.id, session_key="uploads", purpose="user_data")
        first = await store.copy_file(file.id, session_key="uploads", to="k")
        world.pass_time(HOUR - 10)
        assert await store.copy_file(file.id, session_key="uploads", to="k") == first
        world.pass_time(HOUR - 10)
        await store.sweep_files()
        assert await content(store, first.id) == DATA


async def test_the_limits_hold_for_copies(path):
    limits = AttachmentLimits(conversation_files=1)
    async with open_store(path, limits=limits) as store:
        one, two = await put(store, b"one", key="a"), await put(store, b"two", key="b")
        await store.copy_file(one.id, session_key="a", to="k")
        with pytest.raises(AttachmentTooLarge, match="limit of 1 files"):
            await store.copy_file(two.id, session_key="b", to="k")


async def test_a_file_that_is_too_large_is_told_apart(path):
    limits = AttachmentLimits(message_bytes=10, types=("text/*",))
    async with open_store(path, limits=limits) as store:
        with pytest.raises(AttachmentTooLarge):
            await store.put_file(Attachment(data=b"x" * 11), session_key="k")
        with pytest.raises(AttachmentRefused) as refused:
            await store.put_file(Attachment(data=b"\0" * 10), session_key="k")
        assert not isinstance(refused.value, AttachmentTooLarge)
