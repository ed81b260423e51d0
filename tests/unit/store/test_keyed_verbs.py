"""A verb that writes says which session_key it is about, so that an engine can lock it first."""

from __future__ import annotations

import inspect

import pytest

from hermes.messages import Inbound, Rotation, TurnCommit
from hermes.store.transaction import KeyedWork, keys_of
from hermes.store.verb_kinds import _WritingVerb
from hermes.store.verbs import StoreVerbs


class Asked(StoreVerbs):
    """Returns the work of a verb instead of running it."""

    def transact(self, work):
        return work

    transact_unflushed = transact_deferred = transact_alone = snapshot = transact


VERBS = {name: verb for name, verb in vars(StoreVerbs).items() if isinstance(verb, _WritingVerb)}
WITH_KEY = [name for name, verb in VERBS.items() if "session_key" in verb.signature.parameters]


@pytest.mark.parametrize("name", WITH_KEY)
def test_a_verb_with_a_session_key_names_it(name):
    parameters = VERBS[name].signature.parameters
    positional = [each.name for each in parameters.values() if each.kind is not each.KEYWORD_ONLY]
    values = {each: "k" if each == "session_key" else None for each in positional}
    if "session_key" in values:
        assert keys_of([getattr(Asked(), name)(*values.values())]) == ["k"]
    assert keys_of([getattr(Asked(), name)(**values | {"session_key": "k"})]) == ["k"]


def test_there_are_such_verbs_of_both_kinds():
    kinds = {VERBS[name].signature.parameters["session_key"].kind for name in WITH_KEY}
    assert kinds == {
        inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY,
    }  # fmt: skip


def test_a_message_a_turn_and_a_compression_name_their_key():
    asked = Asked()
    turn = TurnCommit(session_key="turn", session_id="s", epoch=1, revision=0, inbox_ids=[1])
    rotation = Rotation(
        session_id="s", messages=[], rotation_id="r", rewrites=0, upto=0, session_key="rotation"
    )
    batch = [
        asked.accept(Inbound("message", "1", "hello"), max_queued=1),
        asked.accept(inbound=Inbound("another", "1", "hello")),
        asked.commit_turn(turn),
        asked.rotate(rotation),
    ]
    assert keys_of(batch) == ["another", "message", "rotation", "turn"]


@pytest.mark.parametrize("key", [None, 7, "two\nlines", "\ud800"])
def test_without_a_valid_key_nothing_is_locked(key):
    assert not isinstance(Asked().new_session(key), KeyedWork)


def test_a_verb_without_a_key_and_one_that_reads_name_none():
    asked = Asked()
    assert keys_of([asked.append_message("s", "user", "hello"), asked.get_route("k")]) == []
