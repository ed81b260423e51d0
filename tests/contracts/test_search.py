"""Search: what is found, how it is shown, and that rewound messages are never shown."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from itertools import chain

import apsw
import pytest
import trio
from hypothesis import HealthCheck, given, settings, strategies as st

from hermes.errors import StoreError, UnknownSession
from hermes.messages import Message, SearchHit, ToolCall
from hermes.store import open_store
from hermes.store.sqlite import search
from tests.support.processes import foreign

WRITE_ELSEWHERE = """
import sys
from hermes.store import SessionStore

with SessionStore(sys.argv[1]) as store:
    store.append_message(sys.argv[2], "user", sys.argv[3])
"""

QUERIES = [
    "",
    " ",
    "*",
    "**",
    '"',
    '""',
    '"unbalanced',
    'a "b" c" d',
    "AND",
    "NOT NOT",
    "OR apple",
    "apple OR",
    "apple AND OR NOT pear",
    "(apple",
    "apple)",
    "((((",
    "content:apple",
    "{content tools}: apple",
    "^apple",
    "apple + pear",
    "NEAR(apple pear, 3)",
    "apple-pear",
    "state.db",
    "snake_case",
    "C++",
    "it's",
    "'; DROP TABLE messages; --",
    "a\x00b",
    "\x00",
    "\ud800",
    "apple\udfff",
    "👩‍👩‍👧‍👦",
    "👍🏽 apple",
    "!?.,;:-_=+[]{}<>|\\/~`@#$%^&",
    "\u202e\u200b\ufeff",
    "a" * 5000,
    "apple " * 1000,
    "a* " * 1700,
    "你" * 5000,
    '"' * 5000,
    "a OR " * 1000,
    "a AND b OR " * 450,
    "(" * 5000,
]


def ids(store, query, **filters):
    return [hit.message_id for hit in store.search_messages(query, **filters)]


def say(store, session_id, *texts, role="user", **fields):
    """Append each text; returns the message ids."""
    return [store.append_message(session_id, role, text, **fields).message_id for text in texts]


def snippets(store, query, **filters):
    return [hit.snippet for hit in store.search_messages(query, **filters)]


@pytest.fixture
def chat(store):
    """A store with one session, `a`."""
    store.create_session("a", "tui")
    return store


# What is found


def test_a_hit_has_its_position_and_its_context(chat, world):
    chat.set_session_title("a", "Fruit")
    say(chat, "a", "before it")
    world.pass_time(5)
    [found] = say(chat, "a", "I like apples a lot", role="assistant")
    say(chat, "a", "after it")
    assert chat.search_messages("apples") == [
        SearchHit(
            message_id=found,
            session_id="a",
            role="assistant",
            snippet="I like >>>apples<<< a lot",
            timestamp=world.now,
            source="tui",
            title="Fruit",
            before="before it",
            after="after it",
        )
    ]


def test_words_are_found_regardless_of_case_and_accents(chat):
    [cafe, other] = say(chat, "a", "Le CAFÉ du coin", "coincidence")
    assert ids(chat, "café") == [cafe]
    assert ids(chat, "cafe") == [cafe]
    assert ids(chat, "COIN") == [cafe]
    assert ids(chat, "coincidence") == [other]


def test_a_star_finds_words_with_that_prefix(chat):
    one, two, _ = say(chat, "a", "scheduler", "schedule", "reschedule")
    assert sorted(ids(chat, "sched*")) == [one, two]
    assert ids(chat, "schedu") == []


def test_a_quoted_phrase_is_found_as_it_is_written(chat):
    phrase, _ = say(chat, "a", "the red apple fell", "the apple is red")
    assert ids(chat, '"red apple"') == [phrase]
    assert snippets(chat, '"red apple"') == ["the >>>red apple<<< fell"]


def test_several_words_must_all_be_there(chat):
    both, *_ = say(chat, "a", "apple and pear", "apple", "pear")
    assert ids(chat, "apple pear") == [both]
    assert ids(chat, "apple AND pear") == [both]


def test_or_and_not_are_operators(chat):
    apple, pear, both, _ = say(chat, "a", "apple", "pear", "pear apple", "plum")
    assert sorted(ids(chat, "apple OR pear")) == [apple, pear, both]
    assert ids(chat, "apple NOT pear") == [apple]
    assert ids(chat, '"pear" NOT appl*') == [pear]


def test_lowercase_and_or_not_are_ordinary_words(chat):
    [found, _] = say(chat, "a", "this or that", "this that")
    assert ids(chat, "or") == [found]


@pytest.mark.parametrize("text", ["state.db", "snake_case", "e-mail", "C++ templates", "a@b.org"])
def test_words_with_punctuation_are_found_as_typed(chat, text):
    [found, _] = say(chat, "a", f"look at {text} please", "something else")
    assert ids(chat, text) == [found]


def test_names_of_tools_are_found(chat):
    [call] = say(chat, "a", None, role="assistant", tool_calls=[ToolCall("c1", "read_thermometer")])
    [result] = say(
        chat, "a", "21 degrees", role="tool", tool_name="read_thermometer", tool_call_id="c1"
    )
    assert sorted(ids(chat, "read_thermometer")) == [call, result]
    assert sorted(ids(chat, "thermometer")) == [call, result]


def test_arguments_of_tool_calls_are_found(chat):
    calls = [
        ToolCall("c1", "weather", '{"city": "Zürich", "unit": "kelvin"}'),
        ToolCall("c2", "weather", '{"city": "北京市"}'),
    ]
    [call] = say(chat, "a", "let me look", role="assistant", tool_calls=calls)
    assert ids(chat, "zürich") == [call]
    assert ids(chat, "kelvin") == [call]
    assert ids(chat, "北京") == [call]
    assert ids(chat, "kelvin look") == [call]
    assert "Zürich" in snippets(chat, "kelvin")[0]


def test_a_word_at_the_start_of_a_line_of_an_argument_is_found(chat):
    arguments = r'{"code": "import os\nprint(1)\n\tbreak"}'
    [call] = say(
        chat, "a", None, role="assistant", tool_calls=[ToolCall("c1", "python", arguments)]
    )
    assert ids(chat, "import") == [call]
    assert ids(chat, "print") == [call]
    assert ids(chat, "break") == [call]


def test_how_a_call_is_stored_is_not_found(chat):
    calls = [ToolCall("call_77", "weather", '{"city": "Rome"}')]
    say(chat, "a", None, role="assistant", tool_calls=calls, reasoning="thinking of pasta")
    assert [ids(chat, query) for query in ("arguments", "tool_calls", "pasta")] == [[]] * 3


@pytest.mark.parametrize(
    "arguments", ["", "{", "not JSON", '{"q": "\\ud800"}', "[" * 5000, "7" * 5000]
)
def test_arguments_that_are_not_json_do_not_prevent_indexing(chat, arguments):
    calls = [ToolCall("c1", "weather", arguments)]
    [call] = say(chat, "a", "plum", role="assistant", tool_calls=calls)
    assert ids(chat, "weather plum") == [call]
    assert chat.check_search() is None
    chat.delete_session("a")
    assert ids(chat, "weather") == []
    assert chat.check_search() is None


def deeper(frames, work):
    """Call `work` with this many more frames on the stack."""
    return work() if frames == 0 else deeper(frames - 1, work)


def test_the_indexed_part_of_an_argument_does_not_depend_on_the_depth_of_the_stack(store):
    store.create_session("a", "tui")
    for depth in range(850, 1000, 5):
        arguments = '{"a":' + "[" * depth + r'"x\ny"' + "]" * depth + "}"
        store.append_message("a", "assistant", tool_calls=[ToolCall("c", "n", arguments)])
    store.index_pending()
    assert deeper(60, store.check_search) is None
    deeper(60, lambda: store.delete_session("a"))
    assert store.check_search() is None


def test_the_text_of_structured_parts_is_found(chat):
    parts = [
        {"type": "text", "text": "look at this giraffe"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,zebra"}},
        {"type": "text", "text": "and this 长颈鹿"},
    ]
    [found] = say(chat, "a", None, parts=parts)
    assert ids(chat, "giraffe") == [found]
    assert ids(chat, "长颈鹿") == [found]
    assert ids(chat, "zebra") == []


def test_a_message_without_words_can_be_indexed(chat):
    [nothing, empty, found] = say(chat, "a", None, "", "pear")
    [hit] = chat.search_messages("pear")
    assert (hit.message_id, hit.before, hit.after) == (found, "", None)
    assert (nothing, empty) == (found - 2, found - 1)


def test_text_is_found_on_both_sides_of_a_nul_character(chat):
    [found] = say(chat, "a", "apple\x00pear")
    assert ids(chat, "apple") == [found]
    assert ids(chat, "pear") == [found]


# Scripts without spaces


PIECES_OF_TEXT = [
    ("今天天气很好", "气", "今天天>>>气<<<很好"),
    ("今天天气很好", "天气", "今天>>>天气<<<很好"),
    ("今天天气很好", "天气很", "今天>>>天气很<<<好"),
    ("今天天气很好", "今天天气很好", ">>>今天天气很好<<<"),
    ("あしたは雨です", "雨", "あしたは>>>雨<<<です"),
    ("あしたは雨です", "した", "あ>>>した<<<は雨です"),
    ("カタカナとひらがな", "タカナ", "カ>>>タカナ<<<とひらがな"),
    ("한국어를 공부합니다", "어", "한국>>>어<<<를 공부합니다"),
    ("한국어를 공부합니다", "공부", "한국어를 >>>공부<<<합니다"),
    ("한국어를 공부합니다", "합니다", "한국어를 공부>>>합니다<<<"),
    ("用Python写的程序", "Python写", "用>>>Python写<<<的程序"),
    ("用Python写的程序", "python", "用>>>Python<<<写的程序"),
    ("hello 世界 again", "世界", "hello >>>世界<<< again"),
    ("hello 世界 again", "hello", ">>>hello<<< 世界 again"),
    ("第3章：结论", "3", "第>>>3<<<章：结论"),
    ("第3章：结论", "第3章", ">>>第3章<<<：结论"),
    ("你 好", "好", "你 >>>好<<<"),
    ("𠀀𠀁𠀂", "𠀁", "𠀀>>>𠀁<<<𠀂"),
]


def test_pieces_of_text_without_spaces_are_found_and_shown_as_written(store):
    for number, (text, query, snippet) in enumerate(PIECES_OF_TEXT):
        session_id = f"s{number}"
        store.create_session(session_id, "tui")
        say(store, session_id, text)
        assert snippets(store, query, session_ids=[session_id]) == [snippet]


def test_characters_that_are_not_adjacent_do_not_match(chat):
    say(chat, "a", "今天天气很好")
    assert ids(chat, "今很") == []
    assert ids(chat, "好很") == []


def test_words_of_two_scripts_are_searched_together(chat):
    [found, _, _] = say(chat, "a", "deploy 的结果 was fine", "deploy", "结果")
    assert ids(chat, "结果 deploy") == [found]
    assert ids(chat, "结果 NOT deploy") != [found]
    assert ids(chat, '"deploy 的结果"') == [found]


def test_a_star_works_in_scripts_without_spaces(chat):
    [found, _] = say(chat, "a", "数据库", "库存")
    assert ids(chat, "数据*") == [found]


def test_neighbours_in_scripts_without_spaces_are_shown_as_written(chat):
    say(chat, "a", "前面的话", "中间", "後ろの話")
    [hit] = chat.search_messages("中间")
    assert (hit.before, hit.after) == ("前面的话", "後ろの話")


def test_a_long_text_is_cut_and_the_rest_is_shown_as_written(chat):
    text = "".join(chr(0x4E00 + place) for place in range(200))
    say(chat, "a", text)
    [snippet] = snippets(chat, text[100:103])
    assert text[100:103] == snippet.partition(">>>")[2].partition("<<<")[0]
    assert len(snippet) < 60
    shown = snippet.replace(">>>", "").replace("<<<", "").strip("…")
    assert shown in text


# Filters, order, paging


@pytest.fixture
def library(store, world):
    """Two sources, three sessions, each message ten seconds after the one before."""
    for session_id, source in (("a", "tui"), ("b", "telegram"), ("c", "telegram")):
        store.create_session(session_id, source)
    said = {}
    for session_id, role in (
        ("a", "user"),
        ("b", "user"),
        ("b", "assistant"),
        ("c", "user"),
        ("a", "assistant"),
    ):
        world.pass_time(10)
        [said[session_id, role]] = say(store, session_id, "one plum", role=role)
    return store, said


def test_hits_are_filtered_by_source_role_and_session(library):
    store, said = library
    every = set(said.values())
    assert set(ids(store, "plum")) == every
    assert ids(store, "plum", source="tui", role="user") == [said["a", "user"]]
    assert set(ids(store, "plum", source="telegram")) == {
        said["b", "user"],
        said["b", "assistant"],
        said["c", "user"],
    }
    assert set(ids(store, "plum", role="assistant")) == {
        said["a", "assistant"],
        said["b", "assistant"],
    }
    assert set(ids(store, "plum", session_ids=["c", "a", "unknown"])) == {
        said["a", "user"],
        said["a", "assistant"],
        said["c", "user"],
    }
    assert ids(store, "plum", session_ids=[]) == []
    assert ids(store, "plum", source="discord") == []


def test_hits_are_filtered_by_a_half_open_interval_of_time(library, world):
    store, said = library
    at = {key: world.now - 40 + 10 * place for place, key in enumerate(said)}
    second, fourth = ("b", "user"), ("c", "user")
    assert ids(store, "plum", after=at[fourth], before=at[fourth] + 1) == [said[fourth]]
    assert set(ids(store, "plum", after=at[second], before=at[fourth])) == {
        said["b", "user"],
        said["b", "assistant"],
    }
    assert ids(store, "plum", after=world.now + 1) == []
    assert ids(store, "plum", before=world.now - 40) == []


def test_newest_first_follows_the_time_of_the_messages(library):
    store, said = library
    assert ids(store, "plum", newest_first=True) == list(reversed(said.values()))


def test_the_time_of_a_message_is_the_one_it_was_given(chat):
    [late, early] = [
        chat.append_message("a", "user", "plum", timestamp=at).message_id for at in (2000.0, 1000.0)
    ]
    hits = chat.search_messages("plum", newest_first=True)
    assert [(hit.message_id, hit.timestamp) for hit in hits] == [(late, 2000.0), (early, 1000.0)]


def test_the_best_match_comes_first(chat):
    _, best = say(chat, "a", "plum " + "and something else " * 10, "plum plum plum")
    assert ids(chat, "plum")[0] == best


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_neither_overlap_nor_leave_out_anything(chat, newest_first):
    said = say(chat, "a", *(f"plum {place % 3}" for place in range(11)))
    pages = [
        ids(chat, "plum", limit=4, offset=offset, newest_first=newest_first)
        for offset in (0, 4, 8, 12)
    ]
    assert [len(page) for page in pages] == [4, 4, 3, 0]
    assert sorted(chain.from_iterable(pages)) == said


def test_a_page_has_twenty_hits_by_default(chat):
    say(chat, "a", *["plum"] * 25)
    assert len(ids(chat, "plum")) == 20


# Rewound messages


def test_neighbours_are_of_the_same_session(store):
    for session_id in ("a", "b", "c"):
        store.create_session(session_id, "tui")
    say(store, "a", "last of a")
    say(store, "b", "pear")
    say(store, "c", "first of c")
    [hit] = store.search_messages("pear")
    assert (hit.before, hit.after) == (None, None)


def test_neighbours_are_live(chat):
    _, second = say(chat, "a", "stays", "goes")
    chat.rewind("a", second)
    say(chat, "a", "pear")
    [gone] = say(chat, "a", "goes too")
    chat.rewind("a", gone)
    [hit] = chat.search_messages("pear")
    assert (hit.before, hit.after) == ("stays", None)
    say(chat, "a", "comes")
    [hit] = chat.search_messages("pear")
    assert (hit.before, hit.after) == ("stays", "comes")


def test_neighbours_are_cut_to_two_hundred_characters(chat):
    say(chat, "a", "x" * 500, "pear", "y" * 500)
    [hit] = chat.search_messages("pear")
    assert (hit.before, hit.after) == ("x" * 200, "y" * 200)


@pytest.mark.parametrize("indexed", [False, True], ids=["waiting", "indexed"])
@pytest.mark.parametrize("way", ["rewound", "replaced", "deleted"])
def test_rewound_messages_are_never_found(chat, indexed, way):
    queries = ["secret", "秘", "秘密", "秘密的", "sec*", "hidden_tool", "暗号"]
    calls = [ToolCall("c1", "hidden_tool", '{"q": "暗号"}')]
    [taken] = say(chat, "a", "a secret 秘密的", tool_calls=calls)
    if indexed:
        assert [ids(chat, query) for query in queries] == [[taken]] * 7
    if way == "rewound":
        chat.rewind("a", taken)
    elif way == "replaced":
        chat.replace_messages("a", [Message("user", "nothing to see")])
    else:
        chat.delete_session("a")
    assert [ids(chat, query) for query in queries] == [[]] * 7
    assert chat.check_search() is None


@pytest.mark.parametrize("indexed", [False, True], ids=["waiting", "indexed"])
def test_the_old_text_of_an_edit_is_never_found(chat, indexed):
    calls = [ToolCall("c1", "hidden_tool")]
    [first, _] = [
        *say(chat, "a", "a secret 秘密的", tool_calls=calls),
        *say(chat, "a", "reply"),
    ]
    if indexed:
        assert ids(chat, "secret 秘") == [first]
    chat.edit_message("a", first, "harmless")
    for query in ("secret", "秘", "秘密", "秘密的", "sec*"):
        assert ids(chat, query) == []
    [edited, reply] = chat.get_messages("a")  # the text changes, the calls stay
    assert ids(chat, "hidden_tool") == [edited.id]
    assert ids(chat, "reply") == [reply.id]
    assert chat.check_search() is None


def test_the_new_text_of_an_edit_is_found_with_the_messages_after_it(chat):
    first, _ = say(chat, "a", "buy aples", "aples bought")
    chat.edit_message("a", first, "buy apples")
    hits = chat.search_messages("buy")
    assert [(hit.snippet, hit.after) for hit in hits] == [(">>>buy<<< apples", "aples bought")]
    assert len(ids(chat, "aples")) == 1


def test_deleting_a_session_removes_only_its_own_text_from_the_index(store):
    store.create_session("a", "tui")
    store.create_session("b", "tui")
    say(store, "a", "plum")
    [kept] = say(store, "b", "plum")
    assert len(ids(store, "plum")) == 2
    store.delete_session("a")
    assert ids(store, "plum") == [kept]
    store.create_session("a", "tui")
    assert ids(store, "plum") == [kept]
    with pytest.raises(UnknownSession):
        say(store, "gone", "plum")
    assert ids(store, "plum") == [kept]


# Up to date, and repairable


def test_a_search_finds_messages_written_just_before(chat):
    for place in range(3):
        said = say(chat, "a", f"fresh number{place}")
        assert ids(chat, f"number{place}") == said


def test_a_search_finds_more_rows_than_one_step_indexes(chat):
    chat.append_messages("a", [Message("user", f"row n{n}") for n in range(600)])
    assert len(ids(chat, "row", limit=1000)) == 600
    assert snippets(chat, "n599") == ["row >>>n599<<<"]


def write_elsewhere(path, session_id, text):
    """Append a message from another process."""
    code = [sys.executable, "-c", WRITE_ELSEWHERE, str(path), session_id, text]
    subprocess.run(code, check=True, timeout=60)


def test_a_search_finds_messages_of_another_process(chat, path):
    say(chat, "a", "ours")
    assert ids(chat, "theirs") == []
    write_elsewhere(path, "a", "theirs 他们的")
    assert snippets(chat, "theirs") == [">>>theirs<<< 他们的"]
    assert snippets(chat, "他们") == ["theirs >>>他们<<<的"]


EMPTYING = {
    "sqlite": {
        "INSERT INTO search (search) VALUES ('delete-all')": '"plum"',
        "INSERT INTO stems (stems) VALUES ('delete-all')": "plum",
    },
    "postgres": {"UPDATE messages SET words = ''": "plum"},
}
"""Statements that empty an index, and what is not found any more."""


def test_a_rebuild_reads_everything_again_from_the_messages(chat, path, engine):
    said = say(chat, "a", "plum", "plum 梅子", None)
    [gone] = say(chat, "a", "plum taken back")
    chat.rewind("a", gone)
    assert len(ids(chat, "plum")) == 2
    for statement, query in EMPTYING[engine].items():
        assert len(ids(chat, query)) == 2
        foreign(path, statement)  # on a connection without anything of ours
        assert ids(chat, query) == []
    assert chat.check_search() is not None
    assert chat.rebuild_search() == 4
    assert sorted(ids(chat, "plum")) == said[:2]
    assert ids(chat, "梅") == [said[1]]
    assert chat.check_search() is None


def test_a_rebuild_includes_messages_that_were_not_indexed_yet(chat):
    said = say(chat, "a", "plum", "梅子")
    chat.rebuild_search()
    assert ids(chat, "plum") + ids(chat, "梅") == said
    assert chat.check_search() is None


def test_a_rebuild_returns_the_number_of_messages(chat):
    say(chat, "a", "plum", "梅子", None)
    assert chat.rebuild_search() == 3
    chat.index_pending()
    say(chat, "a", "one more")
    assert chat.rebuild_search() == 4


def test_a_check_reports_that_the_index_does_not_match(chat, sql):
    say(chat, "a", "plum")
    chat.index_pending()
    assert chat.check_search() is None
    sql("UPDATE messages SET content = 'cherry'")
    problem = chat.check_search()
    assert problem is not None
    assert problem.startswith("the search index does not match ")
    chat.rebuild_search()
    assert chat.check_search() is None
    assert snippets(chat, "cherry") == [">>>cherry<<<"]


def test_rows_that_are_not_indexed_yet_are_not_a_problem(chat):
    said = say(chat, "a", *["plum"] * 20)
    assert chat.check_search() is None
    assert sorted(ids(chat, "plum", limit=1000)) == said


@pytest.mark.sqlite_only("reads the schema of FTS5")
def test_the_index_holds_no_second_copy_of_the_text(chat, path):
    say(chat, "a", "plum")
    chat.index_pending()
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_schema")}
    finally:
        db.close()
    assert "search_data" in tables
    assert "search_content" not in tables


# Any query


def test_every_query_has_a_result(chat):
    [said] = say(chat, "a", "apple pear 苹果")
    for query in QUERIES:
        assert ids(chat, query) in ([], [said])


def test_a_query_with_many_nots_has_a_result(chat):
    [found] = say(chat, "a", "apple")
    assert ids(chat, "apple" + " NOT a" * 300) == [found]


def test_a_query_without_a_word_finds_nothing(chat):
    say(chat, "a", "apple !?")
    assert [ids(chat, query) for query in ("", "*", '""', "!?", "AND", "👍", "\x00")] == [[]] * 7


def test_the_valid_part_of_a_malformed_query_is_searched(chat):
    [found, _] = say(chat, "a", "apple pear", "plum")
    for query in ('"apple', "apple)", "OR apple", "apple AND", "apple\ud800", "apple\x00pear"):
        assert ids(chat, query) == [found]


PIECES = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=20),
    st.sampled_from(
        ["AND", "OR", "NOT", "NEAR", '"', "*", "(", ")", "-", "^", ":", "\x00", "苹果"]
    ),
    st.sampled_from(
        ["apple", "pear", "👍", "\ud800", "content:", "한국", "é", " ", "\x02", "\x03"]
    ),
)


@pytest.fixture
def fruit(store):
    """A session with a row, and another that was rewound."""
    store.create_session("a", "tui")
    store.append_message("a", "user", "apple pear 苹果 한국어")
    taken = store.append_message("a", "user", "apple taken back").message_id
    store.rewind("a", taken)
    return store


@settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(pieces=st.lists(PIECES, max_size=40), joint=st.sampled_from(["", " ", "\n"]))
def test_any_text_is_a_query(fruit, pieces, joint):
    [live] = fruit.get_messages("a")
    hits = fruit.search_messages(joint.join(pieces))
    assert [hit.message_id for hit in hits] in ([], [live.id])


LETTERS = st.sampled_from("今天气很好あ雨한국 ab. 3ü\n，")
WRITING = st.text(LETTERS, max_size=30) | st.text(LETTERS, min_size=60, max_size=150)


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=WRITING, piece=st.data())
def test_any_piece_without_latin_letters_is_found_and_shown_as_written(store, text, piece):
    text = f"雨{text}"
    start = piece.draw(st.integers(0, len(text) - 1))
    end = piece.draw(st.integers(start + 1, min(start + 6, len(text))))
    query = "".join(letter for letter in text[start:end] if letter in "今天气很好あ雨한국")
    query = query if query and query in text else "雨"
    store.create_session("a", "tui")
    store.replace_messages("a", [Message("user", text)])
    [hit] = store.search_messages(query)
    # A match may have punctuation in it, and may be cut where the snippet ends.
    marked = re.sub(r"[，.\s]", "", hit.snippet).split(">>>")[1:]
    pieces = [piece.partition("<<<")[0] for piece in marked]
    assert any(query in piece or query.startswith(piece) for piece in pieces)
    shown = hit.snippet.replace(">>>", "").replace("<<<", "").strip("…")
    assert shown.strip() in text


def test_a_snippet_that_ends_inside_a_match_shows_the_start_of_the_match(store):
    store.create_session("a", "tui")
    text = "雨3 .3.3" + "あ3" * 4 + ".3" + "あ3" * 12 + "ああああ"
    store.append_message("a", "user", text)
    [hit] = store.search_messages("ああああ")
    assert hit.snippet.endswith(">>>あああ<<<…")


# Bounds


def test_a_star_after_a_single_letter_is_ignored(chat):
    _, plum, dashed, _ = say(chat, "a", "apple", "a plum", "b-a", "b-ab")
    assert sorted(ids(chat, "a*")) == [plum, dashed]
    assert ids(chat, "b-a*") == [dashed]


def test_only_the_first_stars_count():
    words = [f"word{number}*" for number in range(20)]
    assert search.to_fts(" OR ".join(words)).count("*") == search.MAX_PREFIXES
    assert search.to_fts("ap* 梅* a* pl*").count("*") == 2


def test_a_search_that_takes_too_long_is_ended(store):
    store.create_session("s")
    store.append_messages("s", [Message("user", f"apple {number}") for number in range(2000)])
    with pytest.raises(StoreError, match="the search took longer than 0 s") as caught:
        store.search_messages("apple", timeout=0.0)
    assert type(caught.value) is StoreError
    assert len(store.search_messages("apple")) == 20


async def test_a_search_delays_neither_lists_nor_facts(path):
    """Otherwise a slow search would hang `/sessions` and the status of everybody."""
    started, release = threading.Event(), threading.Event()

    def slow(tx):
        started.set()
        assert release.wait(30)

    async with open_store(path) as store, trio.open_nursery() as nursery:
        nursery.start_soon(store.run_search, slow)
        await trio.to_thread.run_sync(started.wait)
        try:
            with trio.fail_after(20):
                assert await store.list_sessions() == []
                await store.facts()
                assert await store.get_session("s") is None
        finally:
            release.set()
