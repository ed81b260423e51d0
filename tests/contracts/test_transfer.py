"""Export and import: a lossless round trip, or a refusal in one sentence with nothing imported."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from hermes.errors import BadImport, StoreError, UnknownSession
from hermes.messages import Imported, Message, ToolCall, Usage
from hermes.store import Clock, Rotation, SessionStore
from tests.support.folders import quick_folder

NOW = 1_800_000_000.0
DAY = 86_400.0
BARE = {
    "format": "hermes-session-1",
    "id": "x",
    "source": "cli",
    "kind": "new",
    "started_at": NOW - 100,
    "last_active": NOW - 50,
}


def line(**fields):
    """A line as `export_session` writes them, with these fields."""
    return json.dumps({**BARE, **fields})


def row(seq, content="hello", **fields):
    return {"seq": seq, "role": "user", "timestamp": NOW, "content": content, **fields}


def at(now=NOW):
    return Clock(wall=lambda: now)


@pytest.fixture
def other(other_path):
    """A second store, to export from."""
    with SessionStore(other_path, clock=at()) as opened:
        yield opened


def listed(sessions):
    return {one.session.id: one.session.kind for one in sessions}


def again(store, lines):
    """What the store exports after it imported the lines, in their order."""
    store.import_sessions(lines)
    return [store.export_session(json.loads(text)["id"]) for text in lines]


def fill(store, session_id="a"):
    """A session with one of everything."""
    store.create_session(
        session_id,
        "telegram",
        model="big",
        model_config={"temperature": 0.5, "stop": ["\n"], "deep": {"list": [1, None, True]}},
        system_prompt="be brief\nand kind",
        user_id="u1",
        session_key="agent:main:telegram:dm:1",
        chat_id="1",
        chat_type="dm",
        thread_id="t",
        cwd="/work",
        profile="main",
        started_at=NOW - 500,
    )
    store.append_messages(
        session_id,
        [
            Message("user", "look 你好 \x00 \u2028 'quoted' \"twice\"", 1234.5, "tg:1"),
            Message(
                "assistant",
                None,
                tool_calls=(ToolCall("c1", "read", '{"path": "a\\nb"}'), ToolCall("c2", "stat")),
                reasoning="first think",
                reasoning_details=({"type": "summary", "text": "…"},),
                finish_reason="tool_calls",
                token_count=17,
                provider_data={"id": "resp_1", "n": [1.5, {"x": None}]},
            ),
            Message("tool", "contents", tool_call_id="c1", tool_name="read"),
            Message("user", parts=({"type": "text", "text": "see"}, {"type": "image", "n": 2**70})),
            Message("assistant", "taken back"),
        ],
    )
    *_, last = store.get_messages(session_id)
    store.rewind(session_id, last.id)
    store.append_message(session_id, "assistant", "")
    store.set_session_title(session_id, "Über alles")
    store.update_token_counts(session_id, Usage("turn", "big", "acme", 10, 20, 3, 4, 5, 0.25))
    store.update_token_counts(session_id, Usage("title", None, None, 1))


# Round trips


def test_a_session_with_everything_is_the_same_after_a_round_trip(store, other):
    fill(other)
    exported = other.export_session("a")
    assert store.import_sessions([exported]) == Imported(1, 6)
    assert store.export_session("a") == exported
    assert store.get_session("a") == other.get_session("a")
    assert store.get_usage("a") == other.get_usage("a")
    for hidden in (False, True):
        assert store.get_messages("a", include_rewound=hidden) == other.get_messages(
            "a", include_rewound=hidden
        )
    assert store.integrity_check() == []


def test_an_export_is_one_line(other):
    fill(other)
    exported = other.export_session("a")
    assert exported.splitlines() != []
    assert "\n" not in exported
    assert json.loads(exported)["format"] == "hermes-session-1"


def test_a_session_that_ended_is_the_same_after_a_round_trip(store, other):
    fill(other)
    other.end_session("a", "user_exit")
    exported = other.export_session("a")
    assert again(store, [exported]) == [exported]
    assert store.get_session("a") == other.get_session("a")


def test_an_imported_session_can_be_continued(store, other):
    fill(other)
    store.import_sessions([other.export_session("a")])
    ours = store.append_message("a", "user", "and now?")
    assert ours == other.append_message("a", "user", "and now?")


def test_exporting_an_unknown_session_is_refused(store):
    with pytest.raises(UnknownSession, match="there is no session 'nobody'"):
        store.export_session("nobody")


def rotate(store, session_id, child_id):
    head = store.head(session_id)
    rotation = Rotation(
        session_id=session_id,
        messages=[Message("user", "summary")],
        rotation_id=f"r-{child_id}",
        rewrites=head.rewrites,
        upto=store.get_messages(session_id)[-1].id,
        child_session_id=child_id,
    )
    assert store.rotate(rotation).session_id == child_id


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)], ids=str)
def test_a_lineage_is_imported_the_same_in_any_order(store, other, order):
    fill(other)
    rotate(other, "a", "b")
    rotate(other, "b", "c")
    branch = other.branch("b", title="a branch")
    lines = [other.export_session(session_id) for session_id in ("a", "b", "c", branch)]
    shuffled = [lines[place] for place in order]
    assert again(store, shuffled) == shuffled
    assert store.get_compression_lineage("b") == ["a", "b", "c"]
    assert store.get_session(branch).parent_session_id == "b"
    assert store.integrity_check() == []


def test_imported_messages_are_found_by_search(store, other):
    fill(other)
    store.import_sessions([other.export_session("a")])
    found = {
        query: [hit.message_id % 2**32 for hit in store.search_messages(query)]
        for query in ("你好", "twice", "stat", "contents", "see")
    }
    assert found == {"你好": [1], "twice": [1], "stat": [2], "contents": [3], "see": [4]}
    assert store.search_messages("taken") == []
    assert store.check_search() is None


def test_imported_messages_are_found_behind_many_empty_sessions(store):
    empty = [line(id=f"empty{number}") for number in range(300)]
    store.import_sessions([*empty, line(messages=[row(1, "needle")])])
    assert [hit.session_id for hit in store.search_messages("needle")] == ["x"]


def test_empty_lines_are_passed_over(store):
    assert store.import_sessions(["", "  \n", line() + "\n", "\t"]) == Imported(1, 0)
    assert store.import_sessions([]) == Imported(0, 0)


# Existing sessions


def test_sessions_that_exist_are_left_as_they_are(store):
    store.create_session("x", "tui")
    store.append_message("x", "user", "ours")
    before = store.export_session("x")
    done = store.import_sessions([line(messages=[row(1)]), line(id="y", messages=[row(1)])])
    assert done == Imported(1, 1, skipped=("x",))
    assert store.export_session("x") == before


def test_the_same_import_twice_changes_nothing_the_second_time(store, other):
    fill(other)
    exported = other.export_session("a")
    store.import_sessions([exported])
    assert store.import_sessions([exported]) == Imported(0, 0, skipped=("a",))
    assert store.export_session("a") == exported


def test_of_two_lines_with_one_id_the_first_counts(store):
    done = store.import_sessions([line(title="first"), line(title="second")])
    assert done.sessions == 1
    assert store.get_session("x").title == "first"


def test_a_second_continuation_is_kept_as_a_fork(store):
    parent = line(id="p", ended_at=NOW, end_reason="compression")
    children = [
        line(id=name, kind="compression", parent_session_id="p", messages=[row(1, name)])
        for name in ("first", "second")
    ]
    assert store.import_sessions([*children, parent]) == Imported(3, 2, forks=("second",))
    assert listed(store.list_sessions()) == {"first": "compression", "second": "fork"}
    assert store.get_session("second").parent_session_id == "p"
    assert store.get_compression_tip("p") == "first"
    assert store.get_conversation_root("second") == "second"


def test_a_continuation_that_comes_later_is_a_fork_too(store):
    parent = line(id="p", ended_at=NOW, end_reason="compression")
    store.import_sessions([parent])
    for name, forks in (("first", ()), ("second", ("second",))):
        child = line(id=name, kind="compression", parent_session_id="p")
        assert store.import_sessions([parent, child]) == Imported(1, 0, skipped=("p",), forks=forks)


@pytest.mark.parametrize(("kind", "kept"), [("compression", "import"), ("branch", "branch")])
def test_an_unknown_parent_is_dropped(store, kind, kept):
    store.import_sessions([line(kind=kind, parent_session_id="gone")])
    session = store.get_session("x")
    assert (session.parent_session_id, session.kind) == (None, kept)


@pytest.mark.parametrize("kind", ["compression", "branch"])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_cycle_of_parents_is_resolved(store, length, kind):
    ended = {"ended_at": 1.0, "end_reason": "compression"}
    lines = [
        line(id=f"s{n}", kind=kind, parent_session_id=f"s{(n + 1) % length}", **ended)
        for n in range(length)
    ]
    assert store.import_sessions(lines) == Imported(length, 0)
    parents = [store.get_session(f"s{n}").parent_session_id for n in range(length)]
    assert parents.count(None) == 1
    assert len(store.get_compression_lineage("s0")) == (length if kind == "compression" else 1)
    assert store.integrity_check() == []


def test_a_title_that_is_taken_gets_a_number(store):
    store.create_session("ours", "tui")
    store.set_session_title("ours", "Chat")
    store.import_sessions([line(id="b", title="Chat"), line(id="c", title="  Chat\u200b ")])
    assert [store.get_session(i).title for i in ("ours", "b", "c")] == [
        "Chat",
        "Chat #2",
        "Chat #3",
    ]


def test_a_long_title_that_is_taken_gets_a_number_and_stays_short_enough(store):
    store.import_sessions([line(id=i, title="t" * 100) for i in ("a", "b", "c")])
    titles = [store.get_session(i).title for i in ("a", "b", "c")]
    assert titles == ["t" * 100, "t" * 97 + " #2", "t" * 97 + " #3"]


def test_leftovers_of_an_older_version_are_cleaned_up(store, world):
    old = world.now - 8 * DAY
    lines = [
        line(id="p", ended_at=old, end_reason="compression", started_at=old),
        line(
            id="orphan",
            kind="compression",
            parent_session_id="p",
            started_at=old,
            messages=[row(1)],
        ),
        line(id="ghost", source="tui", started_at=old, ended_at=old, end_reason="tui_close"),
        line(id="kept", source="tui", started_at=old),
    ]
    done = store.import_sessions(lines)
    assert (done.finalized_orphans, done.pruned_ghosts) == (("orphan",), ("ghost",))
    orphan = store.get_session("orphan")
    assert (orphan.ended_at, orphan.end_reason) == (world.now, "orphaned_compression")
    assert store.get_session("ghost") is None
    assert store.get_session("kept").end_reason is None


# Hostile input

REFUSED = {
    "not JSON": "hello",
    "half a line": line()[:-5],
    "two values": line() + line(),
    "a number": "1",
    "a list": f"[{line()}]",
    "null": "null",
    "a string": '"x"',
    "NaN": line().replace(str(NOW - 100), "NaN"),
    "infinity": line().replace(str(NOW - 100), "Infinity"),
    "a time without end": line().replace(str(NOW - 100), "1e999"),
    "a time of 400 digits": line(started_at=10**400),
    "another format": line(format="hermes-session-2"),
    "a format with a line break": line(format="a\nb"),
    "no format": json.dumps({k: v for k, v in BARE.items() if k != "format"}),
    "no id": json.dumps({k: v for k, v in BARE.items() if k != "id"}),
    "no source": json.dumps({k: v for k, v in BARE.items() if k != "source"}),
    "no kind": json.dumps({k: v for k, v in BARE.items() if k != "kind"}),
    "no start": json.dumps({k: v for k, v in BARE.items() if k != "started_at"}),
    "an empty id": line(id=""),
    "an id of 300": line(id="i" * 300),
    "an id that is a number": line(id=5),
    "an id with NUL first": line(id="\x00abc"),
    "an id with NUL inside": line(id="a\x00bc"),
    "a parent of 300": line(parent_session_id="i" * 300),
    "an unknown kind": line(kind="delegate"),
    "a kind of a million characters": line(kind="x" * 1_000_000),
    "a kind with a line break": line(kind="a\nb"),
    "a title of 101": line(title="t" * 101),
    "a title that is a list": line(title=["x"]),
    "a start that is text": line(started_at="yesterday"),
    "an end without a reason": line(ended_at=NOW),
    "a reason without an end": line(end_reason="x"),
    "a negative revision": line(revision=-1),
    "a huge revision": line(revision=2**64),
    "a config that is a list": line(model_config=[1]),
    "messages that are an object": line(messages={}),
    "a message that is text": line(messages=["hello"]),
    "a message without a role": line(messages=[{"seq": 1, "timestamp": NOW}]),
    "a message without a time": line(messages=[{"seq": 1, "role": "user"}]),
    "content that is a list": line(messages=[row(1, ["x"])]),
    "a negative place": line(messages=[row(-1)]),
    "place zero": line(messages=[row(0)]),
    "a place beyond all": line(messages=[row(2**32)]),
    "a place of 30 digits": line(messages=[row(10**30)]),
    "a place that is a fraction": line(messages=[row(1.5)]),
    "the same place twice": line(messages=[row(1), row(1)]),
    "places out of order": line(messages=[row(2), row(1)]),
    "live as a number": line(messages=[row(1, live=2)]),
    "a tool call without a name": line(messages=[row(1, tool_calls=[{"id": "c"}])]),
    "arguments that are an object": line(
        messages=[row(1, tool_calls=[{"id": "c", "name": "n", "arguments": {}}])]
    ),
    "parts that are text": line(messages=[row(1, parts=["text"])]),
    "a usage of 2**70": line(usage=[{"input_tokens": 2**70}]),
    "a usage of 2**63": line(usage=[{"output_tokens": 2**63}]),
    "usage whose sum is too much": line(usage=[{"input_tokens": 2**62}] * 3),
    "usage that is text": line(usage=[{"input_tokens": "many"}]),
    "half a surrogate pair": line(source="SURROGATE").replace("SURROGATE", r"\ud800"),
    "a surrogate as a key": line()[:-1] + r', "model_config": {"\udfff": 1}}',
    "a surrogate in a message": line(messages=[row(1, "SURROGATE")]).replace(
        "SURROGATE", r"\ud83d"
    ),
    "a surrogate as it is": line()[:-1] + ', "title": "\ud800"}',
    "a NUL between": "\x00" + line(),
    "a NUL in a string": line(title="NUL").replace("NUL", "\x00"),
    "brackets": "[" * 100_000,
    "brackets in the config": line()[:-1] + ', "model_config": {"a": ' + "[" * 100_000 + "}}",
    "balanced brackets in a part": line(messages=[row(1, parts=[{"a": "DEEP"}])]).replace(
        '"DEEP"', "[" * 100_000 + "]" * 100_000
    ),
    "objects in objects": '{"model_config": ' + '{"a":' * 100_000 + "1" + "}" * 100_001,
}


@pytest.mark.parametrize("bad", REFUSED.values(), ids=REFUSED.keys())
def test_bad_lines_are_refused_in_one_sentence_and_nothing_is_imported(store, bad):
    with pytest.raises(BadImport) as refused:
        store.import_sessions([line(id="good", messages=[row(1)]), "", bad])
    sentence = str(refused.value)
    assert sentence.startswith("line 3")
    assert len(sentence.splitlines()) == 1
    assert len(sentence) < 300
    assert store.list_sessions() == []
    assert store.integrity_check() == []


def test_a_refusal_of_a_long_value_says_where_it_is(store):
    with pytest.raises(BadImport, match=r"^line 1 .* 'x{50,100}… - at `\$\.kind`$"):
        store.import_sessions([line(kind="x" * 1_000_000)])


@pytest.mark.parametrize(
    "bad", [line(id="i" * 300), line(usage=[{"input_tokens": 2**70}]), line(id="\x00abc")]
)
def test_a_refused_import_stores_nothing(store, bad):
    with pytest.raises(BadImport):
        store.import_sessions([line(id="good"), bad])
    assert store.list_sessions() == []
    assert store.import_sessions([line(id="good")]) == Imported(1, 0)


@pytest.mark.parametrize("place", ['"model_config": {"a": %s}', '"messages": [%s]'])
def test_an_import_of_any_depth_is_complete_or_refused(store, place):
    message = '{"seq": 1, "role": "user", "timestamp": 1, "provider_data": {"a": %s}}'
    for depth in range(850, 1010):  # up to Python's own limit
        deep = "[" * depth + "]" * depth
        filled = place % (deep if "model_config" in place else message % deep)
        session_id = f"d{depth}"
        try:
            store.import_sessions([line(id=session_id)[:-1] + f", {filled}}}"])
        except BadImport:
            assert store.get_session(session_id) is None
        else:
            json.loads(store.export_session(session_id))


def test_a_position_near_the_end_of_a_session_does_not_overflow_into_the_next(store):
    last = line(messages=[row(2**32 - 1)])
    try:
        store.import_sessions([last, line(id="y")])
    except BadImport:
        return
    with pytest.raises(StoreError):
        store.append_message("x", "user", "spilled")
    assert store.get_messages("y") == []
    assert store.integrity_check() == []


# Properties

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MAYBE = st.none() | TEXT
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
TIME = st.floats(0, NOW, allow_nan=False)
COUNT = st.integers(0, 10**9)
MESSAGE = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "tool", "system"]),
    MAYBE,
    st.none() | TIME,
    st.none() | st.uuids().map(str),
    parts=st.none() | st.lists(OBJECT, max_size=2).map(tuple),
    tool_calls=st.lists(st.builds(ToolCall, TEXT, TEXT, TEXT), max_size=2).map(tuple),
    tool_call_id=MAYBE,
    tool_name=MAYBE,
    reasoning=MAYBE,
    reasoning_details=st.lists(OBJECT, max_size=2).map(tuple),
    finish_reason=MAYBE,
    token_count=st.none() | COUNT,
    provider_data=st.none() | OBJECT,
)
USAGE = st.builds(
    Usage, TEXT, MAYBE, MAYBE, COUNT, COUNT, COUNT, COUNT, COUNT, st.none() | st.floats(0, 99)
)
SESSION = st.fixed_dictionaries(
    {
        "source": st.sampled_from(["cli", "telegram"]) | TEXT.filter(lambda text: text != "tui"),
        "model": MAYBE,
        "model_config": st.none() | OBJECT,
        "system_prompt": MAYBE,
        "user_id": MAYBE,
        "session_key": MAYBE,
        "chat_id": MAYBE,
        "chat_type": MAYBE,
        "thread_id": MAYBE,
        "cwd": MAYBE,
        "profile": MAYBE,
        "started_at": TIME,
    }
)


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    session=SESSION,
    blocks=st.lists(st.lists(MESSAGE, max_size=4), max_size=3),
    rewind=st.booleans(),
    calls=st.lists(USAGE, max_size=3),
    title=st.none() | TEXT,
    ended=st.none() | TEXT,
)
def test_any_session_is_the_same_after_a_round_trip(session, blocks, rewind, calls, title, ended):
    with quick_folder() as folder:
        with SessionStore(folder / "one.db", clock=at()) as one:
            one.create_session("s", **session)
            for block in blocks:
                one.append_messages("s", block)
                if rewind and (rows := one.get_messages("s")):
                    one.rewind("s", rows[-1].id)
            for call in calls:
                one.update_token_counts("s", call)
            one.set_session_title("s", title)
            if ended is not None:
                one.end_session("s", ended)
            exported = one.export_session("s")
            original = one.get_session("s")
        with SessionStore(folder / "two.db", clock=at(NOW + 1)) as two:
            two.import_sessions([exported])
            assert two.export_session("s") == exported
            assert two.get_session("s") == original
            assert two.integrity_check() == []
            assert two.check_search() is None


@pytest.fixture(scope="module")
def sample():
    """A line with everything in it."""
    with quick_folder() as folder, SessionStore(folder / "state.db", clock=at()) as opened:
        fill(opened)
        return opened.export_session("a")


@pytest.fixture
def target(other_path):
    with SessionStore(other_path, clock=at()) as opened:
        yield opened


ODD = st.one_of(
    JSON,
    st.integers(-(2**80), 2**80),
    st.sampled_from(
        [2**31, 2**32, 2**53, 2**63, -1, 0, "", "\x00", "a" * 300, [], {}, [[]], 1e308]
    ),
)
CUTS = st.lists(
    st.tuples(
        st.integers(0, 10**6),
        st.integers(0, 8),
        st.text(st.characters(exclude_categories=()), max_size=4)
        | st.sampled_from(["\\ud800", '"', "{", "[", "]", "}", ",", "\\", "\x00", "null", "1e999"]),
    ),
    min_size=1,
    max_size=4,
)


def outcome(store, text):
    """Import the line, then export it again; a refusal leaves nothing behind."""
    refusal = done = None
    try:
        done = store.import_sessions([text])
    except BadImport as refused:
        refusal = str(refused)
    if done is None:
        assert len(refusal.splitlines()) == 1
        assert store.list_sessions() == []
        return
    for one in store.list_sessions():
        exported = json.loads(store.export_session(one.session.id))
        assert len(exported.get("messages", ())) == done.messages
        store.delete_session(one.session.id)
    assert store.integrity_check() == []


@settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
@given(cuts=CUTS)
@example(cuts=[(5, 0, "\ud800")])
def test_a_line_with_damaged_text_is_imported_or_refused(target, sample, cuts):
    text = sample
    for place, width, put in cuts:
        start = place % len(text)
        text = text[:start] + put + text[start + width :]
    outcome(target, text)


def places(value, path=()):
    """The paths to everything inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in inside:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


@settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
@given(data=st.data(), odd=ODD, drop=st.booleans())
def test_a_line_with_a_wrong_value_is_imported_or_refused(target, sample, data, odd, drop):
    value = json.loads(sample)
    path = data.draw(st.sampled_from(list(places(value))))
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    if drop:
        del holder[path[-1]]
    else:
        holder[path[-1]] = odd
    outcome(target, json.dumps(value))


def test_a_continuation_of_a_live_parent_is_imported_as_a_fork(store):
    store.create_session("p", "x")
    done = store.import_sessions([line(id="c", kind="compression", parent_session_id="p")])
    assert done == Imported(1, 0, forks=("c",))
    assert store.get_compression_tip("p") == "p"


def test_compacted_rows_are_hidden_and_searched_and_stay_so_in_an_export(store, other):
    rows = [
        row(1, "an old heron", live=False, compacted=True),
        row(2, "its neighbour", live=False, compacted=True),
        row(3, "a rewound heron", live=False),
        row(4, "summary"),
    ]
    store.import_sessions([line(id="a", messages=rows)])
    assert again(other, [store.export_session("a")]) == [store.export_session("a")]
    for each in (store, other):
        assert [message.content for message in each.get_messages("a")] == ["summary"]
        [hit] = each.search_messages("heron")
        assert (hit.snippet, hit.compacted) == ("an old >>>heron<<<", True)
        assert (hit.before, hit.after) == (None, "its neighbour")
        [hit] = each.search_messages("summary")
        assert (hit.compacted, hit.before) == (False, "its neighbour")
        assert each.rebuild_search() == 4
        assert len(each.search_messages("heron")) == 1


def test_a_row_that_is_live_is_not_compacted(store):
    store.import_sessions([line(messages=[row(1, "heron", compacted=True)])])
    [hit] = store.search_messages("heron")
    assert not hit.compacted
