"""Search finds other forms of a word, also in a database of an older version."""

from __future__ import annotations

import pytest
import trio

from hermes.store import open_store
from hermes.store.conversations import search
from hermes.store.sqlite import word_forms
from hermes.testing import inline


@pytest.fixture
def chat(store):
    store.create_session("a", "cli")
    return store


def say(store, *texts):
    for text in texts:
        store.append_message("a", "user", text)


def found(store, query):
    return sorted(hit.snippet for hit in store.search_messages(query, limit=1000))


def forget_word_forms(store):
    """Bring the file into the state right after the upgrade: nothing is in the index of forms."""
    store.index_pending()

    def empty(tx):
        tx.run("INSERT INTO stems (stems) VALUES ('delete-all')")
        tx.run("DELETE FROM stems_left")
        tx.run("INSERT INTO stems_left SELECT max(id) FROM messages HAVING count(*) > 0")

    store.transact(empty)


def add_step(store, limit=word_forms.STEP):
    return store.transact(lambda tx: word_forms.add_step(tx, limit))


@pytest.mark.parametrize("query", ["heron", "herons", "HERONS"])
def test_every_form_of_a_word_is_found(chat, query):
    say(chat, "a heron", "two Herons walk", "a heroine")
    assert found(chat, query) == ["a >>>heron<<<", "two >>>Herons<<< walk"]


def test_a_phrase_and_a_prefix_match_exactly(chat):
    say(chat, "a heron walks", "two herons walk", "configurations")
    assert found(chat, '"heron"') == ["a >>>heron<<< walks"]
    assert found(chat, '"herons walk"') == ["two >>>herons walk<<<"]
    assert found(chat, '"heron walk"') == []
    assert found(chat, 'walk "herons"') == ["two >>>herons<<< >>>walk<<<"]
    assert found(chat, "configurati*") == [">>>configurations<<<"]
    assert found(chat, "heron walk") == [
        "a >>>heron<<< >>>walks<<<", "two >>>herons<<< >>>walk<<<",
    ]  # fmt: skip


def test_chinese_and_words_with_separators_are_found_as_before(chat):
    say(chat, "今天天气好", "state.db", "db state", "Äpfel")
    assert found(chat, "天气") == ["今天>>>天气<<<好"]
    assert found(chat, "气天") == []
    assert found(chat, "state.db") == [">>>state.db<<<"]
    assert found(chat, "apfel") == [">>>Äpfel<<<"]


def test_operators_apply_to_word_forms(chat):
    say(chat, "heron and otter", "herons", "otters")
    assert found(chat, "herons NOT otters") == [">>>herons<<<"]
    assert len(found(chat, "heron OR otter")) == 3


def test_deleted_sessions_are_not_found(chat):
    say(chat, "herons", "otters")
    assert found(chat, "otter")
    chat.delete_session("a")
    assert found(chat, "otter") == []
    assert chat.check_search() is None


@pytest.mark.sqlite_only("PostgreSQL indexes words and their forms together")
def test_after_an_upgrade_exact_words_are_found_until_all_forms_are_indexed(chat):
    say(chat, *["two herons"] * 5)
    forget_word_forms(chat)
    while True:
        assert not chat.snapshot(word_forms.is_complete)
        hits = chat.snapshot(lambda tx: search.search_messages(tx, "herons"))
        forms = chat.snapshot(lambda tx: search.search_messages(tx, "heron"))
        assert (len(hits), len(forms)) == (5, 0)
        if not add_step(chat, 2):
            break
    assert chat.snapshot(word_forms.is_complete)
    assert len(found(chat, "heron")) == 5
    assert chat.check_search() is None


@pytest.mark.sqlite_only("PostgreSQL indexes words and their forms together")
def test_messages_that_change_during_the_upgrade_stay_in_step(chat):
    chat.create_session("b", "cli")
    chat.create_session("c", "cli")
    say(chat, *["two herons"] * 5)
    for session_id in ("b", "c"):
        chat.append_message(session_id, "user", "two herons")
    forget_word_forms(chat)
    assert chat.snapshot(word_forms.remaining) == 7
    assert add_step(chat, 2) == 2  # b and c; now something is written to every part of the index
    say(chat, "three herons")
    chat.append_message("c", "user", "four herons")
    chat.create_session("d", "cli")
    chat.append_message("d", "user", "five herons")
    chat.index_pending()
    assert chat.check_search() is None
    chat.delete_session("b")
    while add_step(chat, 2):
        assert chat.check_search() is None
    chat.delete_session("c")
    assert chat.check_search() is None
    assert len(found(chat, "heron")) == 5 + 1 + 1


@pytest.mark.sqlite_only("PostgreSQL indexes words and their forms together")
def test_a_step_is_bounded_in_bytes(chat):
    say(chat, *["x" * 400_000] * 3, "heron", "x" * 900_000)
    forget_word_forms(chat)
    assert [add_step(chat) for _ in range(5)] == [1, 2, 1, 1, 0]


@pytest.mark.sqlite_only("PostgreSQL indexes words and their forms together")
def test_a_search_of_the_blocking_store_indexes_the_forms_first(chat):
    say(chat, "two herons")
    forget_word_forms(chat)
    assert found(chat, "heron") == ["two >>>herons<<<"]


@pytest.mark.sqlite_only("PostgreSQL indexes words and their forms together")
def test_a_rebuild_includes_the_forms(chat):
    say(chat, "two herons")
    forget_word_forms(chat)
    chat.rebuild_search()
    assert chat.snapshot(word_forms.is_complete)
    assert found(chat, "heron") == ["two >>>herons<<<"]


@pytest.mark.sqlite_only("PostgreSQL indexes words and their forms together")
async def test_a_running_store_indexes_the_forms_in_the_background(chat, path, autojump_clock):
    say(chat, *["two herons"] * (word_forms.STEP + 5))
    forget_word_forms(chat)
    chat.close()
    async with open_store(path, open_worker=inline()) as store:
        with trio.fail_after(60):
            while not await store.snapshot(word_forms.is_complete):  # noqa: ASYNC110 - it has none
                await trio.sleep(0.1)
        assert len(await store.search_messages("heron", limit=1000)) == word_forms.STEP + 5


@pytest.mark.sqlite_only("PostgreSQL indexes words and their forms together")
def test_a_damaged_message_is_left_out_and_does_not_stop_the_others(chat, sql):
    say(chat, "one heron", "two herons", "three herons")
    forget_word_forms(chat)
    sql("UPDATE messages SET content = CAST(x'ff41' AS TEXT) WHERE content = 'two herons'")
    assert [add_step(chat), add_step(chat)] == [3, 0]
    assert sql("SELECT rowid & 255 FROM stems WHERE stems MATCH 'heron'") == [[1], [3]]
    assert found(chat, "three") == [">>>three<<< herons"]
