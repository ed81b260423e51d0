"""A conversation reaches the sessions of its own key; an operator reaches all of them."""

from __future__ import annotations

import asyncio

import pytest

from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.errors import AmbiguousTitle, UnknownSession
from hermes.messages import Title
from hermes.store import Rotation, SessionStore
from hermes.testing import texts_of


async def echo(turn):
    return f"echo: {turn.text}"


async def two_users(runtime):
    """Let two keys have a conversation with the same title; returns the sessions."""
    ids = []
    for key in ("alice", "bob"):
        ids.append((await runtime.ask(key, f"I am {key}")).session_id)
        await runtime.conversation(key).set_title("Plans")
    return ids


async def test_switch_reaches_no_session_of_another_key(start):
    async with start(agent=echo) as runtime:
        theirs, own = await two_users(runtime)
        await runtime.conversation("alice").set_title("Secret")
        bob = runtime.conversation("bob")
        for target in (theirs, "Secret", "nothing"):
            with pytest.raises(UnknownSession) as refused:
                await bob.switch(target)
            assert str(refused.value) == f"there is no session {target!r}"
        assert (await bob.status()).session_id == own
        await bob.new()
        assert (await bob.switch("Plans")).session_id == own


async def test_resume_reaches_no_session_of_another_key(start):
    async with start(agent=echo) as runtime:
        theirs, own = await two_users(runtime)
        await runtime.conversation("alice").set_title("Secret")
        for wanted in (theirs, "Secret", "secret", "nothing"):
            reply = await runtime.ask("bob", f"/resume {wanted}")
            assert reply.text.startswith(f"You have no conversation called {wanted!r}.")
            assert reply.session_id == own
        await runtime.ask("bob", "/new")
        assert (await runtime.ask("bob", "/resume plans")).text.startswith("Back in Plans.")
        assert (await runtime.conversation("bob").status()).session_id == own


async def test_the_title_of_another_user_cannot_be_captured(start):
    async with start(agent=echo) as runtime:
        theirs, _ = await two_users(runtime)
        copy = await runtime.conversation("bob").branch()
        assert await runtime.conversation("bob").title() == Title("Plans #2")
        await runtime.conversation("alice").new()
        change = await runtime.conversation("alice").switch("Plans")
        assert change.session_id == theirs != copy.session_id


async def test_resume_finds_the_tip_by_the_title_before_a_compression(start, path):
    async with start(agent=echo) as runtime:
        conversation = runtime.conversation("k")
        parent = (await conversation.ask("one")).session_id
        await conversation.set_title("Plans")
        with SessionStore(path) as store:
            tip = store.rotate(
                Rotation(session_id=parent, messages=[], rotation_id="r", rewrites=0, upto=0)
            ).session_id
            store.create_session("other", session_key="k")
            store.set_session_title("other", "Plans #9")
        for name in ("Plans", "Plans #2", parent):
            await conversation.new()
            assert (await conversation.ask(f"/resume {name}")).text.startswith("Back in Plans #2.")
            assert (await conversation.status()).session_id == tip


async def test_an_operator_moves_a_key_to_a_session_of_another(start):
    async with start(agent=echo) as runtime:
        theirs, own = await two_users(runtime)
        bob = runtime.conversation("bob")
        change = await runtime.admin.switch("bob", theirs)
        assert (change.old_session_id, change.session_id) == (own, theirs)
        assert (await bob.ask("me too")).session_id == theirs
        texts = [text for _, text in texts_of(await bob.history())]
        assert texts == ["I am alice", "echo: I am alice", "me too", "echo: me too"]
        assert {each.session.id for each in await bob.sessions()} == {theirs, own}
        assert {hit.session_id for hit in await bob.search("alice")} == {theirs}
        await bob.switch(own)
        assert (await bob.switch(theirs)).session_id == theirs, "it belongs to both now"
        assert [each.session.id for each in await runtime.conversation("alice").sessions()] == [
            theirs
        ]
        with pytest.raises(UnknownSession):
            await runtime.admin.switch("bob", "nothing")


async def test_an_operator_needs_a_key_for_a_title_that_several_keys_have(start):
    async with start(agent=echo) as runtime:
        theirs, own = await two_users(runtime)
        assert (await runtime.admin.find("Plans", session_key="bob")).session_id == own
        for ask in (runtime.admin.find("Plans"), runtime.admin.switch("carol", "Plans")):
            with pytest.raises(AmbiguousTitle, match=rf"{theirs} \(key alice\), {own} \(key bob\)"):
                await ask
        assert not (await runtime.admin.switch("bob", "Plans")).changed, "its own comes first"


async def test_a_key_that_shares_a_session_sees_each_title_once(start):
    async with start(agent=echo) as runtime:
        theirs, own = await two_users(runtime)
        bob = runtime.conversation("bob")
        await runtime.admin.switch("bob", theirs)
        assert await bob.title() == Title("Plans #2")
        assert await runtime.conversation("alice").title() == Title("Plans #2")
        with pytest.raises(ValueError, match=f"'Plans' is already in use by session {own}"):
            await runtime.conversation("alice").set_title("Plans")
        assert (await bob.ask("/resume Plans")).text.startswith("Back in Plans.")
        assert (await bob.status()).session_id == own


async def test_resume_lists_the_conversations_that_have_one_title(start, path):
    async with start(agent=echo) as runtime:
        theirs, own = await two_users(runtime)
        await runtime.admin.switch("bob", theirs)
        with SessionStore(path) as store:  # as an earlier version could store it
            sql = "UPDATE sessions SET title = 'Plans' WHERE id = ?"
            store.transact(lambda tx: tx.run(sql, theirs))
        reply = await runtime.ask("bob", "/resume Plans")
        head, *listed = reply.text.splitlines()
        assert head.startswith("You have more than one conversation called 'Plans'.")
        assert [line.partition(",")[0] for line in sorted(listed)] == [
            "1. Plans (2 messages",
            "2. Plans (2 messages",
        ]
        assert reply.session_id == theirs
        with pytest.raises(AmbiguousTitle, match=rf"{theirs} \(key alice\), {own} \(key bob\)"):
            await runtime.conversation("bob").switch("Plans")


async def test_resume_lists_the_titles_that_differ_in_case_only(start):
    async with start(agent=echo) as runtime:
        chat = runtime.conversation("k")
        for title in ("Plans", "PLANS", "Other"):
            await chat.new(title)
            await chat.ask("hello")
        before = (await chat.status()).session_id
        head, *listed = (await chat.ask("/resume plans")).text.splitlines()
        assert head.startswith("You have more than one conversation called 'plans'.")
        assert [line.split()[1] for line in listed] == ["PLANS", "Plans"]
        assert (await chat.status()).session_id == before
        number = listed[1].partition(".")[0]
        assert (await chat.ask(f"/resume {number}")).text.startswith("Back in Plans.")
        assert (await chat.ask("/resume PLANS")).text.startswith("Back in PLANS.")


def test_an_operator_switches_in_a_blocking_host(path):
    with start_runtime(path, agent=echo) as runtime:
        theirs = runtime.ask("alice", "hello").session_id
        with pytest.raises(UnknownSession):
            runtime.conversation("bob").switch(theirs)
        assert runtime.admin.switch("bob", theirs).session_id == theirs


def test_an_operator_switches_in_an_asyncio_host(path):
    async def main():
        async with open_runtime_asyncio(path, agent=echo) as runtime:
            theirs = (await runtime.ask("alice", "hello")).session_id
            with pytest.raises(UnknownSession):
                await runtime.conversation("bob").switch(theirs)
            assert (await runtime.admin.switch("bob", theirs)).session_id == theirs

    asyncio.run(main())
