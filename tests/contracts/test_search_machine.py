"""Random changes of transcripts: rows, counters and search always agree with a model."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import msgspec
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hermes.messages import Appended, Head, Message, StoredMessage, ToolCall, Usage
from hermes.store import Clock, SessionStore
from hermes.store.sqlite import search, word_forms
from tests.support.folders import quick_directory

WORDS = ["apple", "pear", "plum", "Äpfel", "x1"]
HAN = ["今天", "天气", "好", "雨です", "한국"]
TOOLS = ["thermometer", "calendar"]
VALUES = ["tomorrow", "kelvin", "plum"]
TOKEN = re.compile(r"[a-z0-9]+|[^\W\d_a-z]")
EXTRA = tuple(
    name
    for name in StoredMessage.__struct_fields__
    if name not in {"id", "role", "content", "timestamp", "platform_message_id"}
)

texts = st.lists(st.sampled_from(WORDS + HAN), max_size=5).map(" ".join)
calls = st.lists(
    st.builds(
        ToolCall,
        st.sampled_from(["c1", "c2"]),
        st.sampled_from(TOOLS),
        st.sampled_from(VALUES).map('{{"q": "{}"}}'.format),
    ),
    max_size=2,
)
parts = st.lists(
    st.one_of(
        texts.map(lambda text: {"type": "text", "text": text}),
        st.just({"type": "image_url", "image_url": {"url": "kelvin"}}),
    ),
    max_size=2,
)
platform_ids = st.none() | st.sampled_from(["p1", "p2", "p3"])
messages = st.one_of(
    st.builds(Message, st.just("user"), texts, st.none(), platform_ids),
    st.builds(Message, st.just("user"), parts=parts.map(tuple)),
    st.builds(
        Message,
        st.just("assistant"),
        st.none() | texts,
        tool_calls=calls.map(tuple),
        reasoning=st.none() | texts,
        finish_reason=st.sampled_from([None, "stop"]),
    ),
    st.builds(
        Message,
        st.just("tool"),
        texts,
        st.floats(0, 1e9),
        tool_name=st.sampled_from(TOOLS),
        tool_call_id=st.just("c1"),
        token_count=st.integers(0, 9),
    ),
)
queries = st.one_of(
    st.sampled_from(WORDS + TOOLS + VALUES),
    st.lists(st.sampled_from("".join(HAN)), min_size=1, max_size=3).map("".join),
)


def tokens(text):
    """The words of a text, each character of a script without spaces by itself."""
    return TOKEN.findall((text or "").lower().replace("ä", "a"))


def contains(found, wanted):
    width = len(wanted)
    return any(found[at : at + width] == wanted for at in range(len(found) - width + 1))


def text_of(message):
    if message.content is not None or message.parts is None:
        return message.content
    return "\n".join(part["text"] for part in message.parts if "text" in part) or None


def matches(message, query):
    wanted = tokens(query)
    called = [f"{call.name} {call.arguments}" for call in message.tool_calls]
    tools = tokens(" ".join([message.tool_name or "", *called]))
    return contains(tokens(message.content), wanted) or contains(tools, wanted)


def _forget_word_forms(tx):
    tx.run("INSERT INTO stems (stems) VALUES ('delete-all')")
    tx.run("DELETE FROM stems_left")
    tx.run("INSERT INTO stems_left SELECT max(id) FROM messages HAVING count(*) > 0")


@attrs.define
class Transcript:
    """The model of one session."""

    no: int
    revision: int = 0
    rewrites: int = 0
    rows: list[StoredMessage] = attrs.Factory(list)
    hidden: set[int] = attrs.Factory(set)

    @property
    def live(self):
        return [row for row in self.rows if row.id not in self.hidden]

    def add(self, message, now):
        stored = StoredMessage(
            self.no * 2**32 + len(self.rows) + 1,
            message.role,
            text_of(message),
            now if message.timestamp is None else message.timestamp,
            message.platform_message_id,
            **{name: getattr(message, name) for name in EXTRA},
        )
        self.rows.append(stored)
        return stored

    def hide_from(self, message_id):
        taken = [row for row in self.live if row.id >= message_id]
        self.hidden |= {row.id for row in taken}
        self.rewrites += 1
        return taken

    def twin(self, platform_id):
        found = [r.id for r in self.live if platform_id and r.platform_message_id == platform_id]
        return found[0] if found else None


class SearchMachine(RuleBasedStateMachine):
    """A store on a real file, and its model."""

    @initialize()
    def open(self):
        self.folder = quick_directory()
        self.now = 1_800_000_000.0
        clock = Clock(wall=lambda: self.now)
        self.store = SessionStore(Path(self.folder.name) / "state.db", clock=clock)
        self.created = 0
        self.model = {}
        self.create()

    def teardown(self):
        if self.model is not None:
            try:
                self.check()
            finally:
                self.store.close()
                self.folder.cleanup()

    model = None

    def pick(self, data, *, filled=False):
        chosen = [i for i, transcript in self.model.items() if transcript.live or not filled]
        session_id = data.draw(st.sampled_from(chosen))
        return session_id, self.model[session_id]

    def changed(self, session_id, head):
        """The answer is the head, and the revision has grown."""
        transcript = self.model[session_id]
        assert head.revision > transcript.revision
        transcript.revision = head.revision
        assert head == self.expected_head(session_id)
        self.now += 1

    def expected_head(self, session_id):
        transcript = self.model[session_id]
        return Head(session_id, len(transcript.live), transcript.revision, transcript.rewrites)

    def some_live(self):
        return self.model and any(transcript.live for transcript in self.model.values())

    # What changes transcripts

    @precondition(lambda self: len(self.model) < 4)
    @rule()
    def create(self):
        self.created += 1
        session_id = f"s{self.created}"
        self.store.create_session(session_id, "tui")
        self.model[session_id] = Transcript(self.created)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), message=messages)
    def append(self, data, message):
        session_id, transcript = self.pick(data)
        twin = transcript.twin(message.platform_message_id)
        appended = self.store.append_message(session_id, **msgspec.structs.asdict(message))
        if twin is not None:
            head = self.expected_head(session_id)
            assert appended == Appended(twin, head, duplicate=True)
            return
        stored = transcript.add(message, self.now)
        assert appended == Appended(stored.id, appended.head)
        self.changed(session_id, appended.head)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), block=st.lists(messages, max_size=6))
    def append_block(self, data, block):
        session_id, transcript = self.pick(data)
        head = self.store.append_messages(session_id, block)
        fresh = 0
        for message in block:
            if transcript.twin(message.platform_message_id) is None:
                transcript.add(message, self.now)
                fresh += 1
        if fresh:
            self.changed(session_id, head)
        else:
            assert head == self.expected_head(session_id)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), block=st.lists(messages, max_size=4))
    def replace(self, data, block):
        named = [m.platform_message_id for m in block if m.platform_message_id]
        block = block if len(named) == len(set(named)) else block[:1]
        session_id, transcript = self.pick(data)
        head = self.store.replace_messages(session_id, block)
        transcript.hide_from(0)
        for message in block:
            transcript.add(message, self.now)
        self.changed(session_id, head)

    @precondition(some_live)
    @rule(data=st.data())
    def rewind(self, data):
        session_id, transcript = self.pick(data, filled=True)
        target = data.draw(st.sampled_from(transcript.live)).id
        taken = self.store.rewind(session_id, target)
        assert taken == transcript.hide_from(target)
        self.changed(session_id, self.store.head(session_id))

    @precondition(some_live)
    @rule(data=st.data(), text=texts)
    def edit(self, data, text):
        session_id, transcript = self.pick(data, filled=True)
        target = data.draw(st.sampled_from(transcript.live)).id
        head = self.store.edit_message(session_id, target, text)
        edited, *rest = transcript.hide_from(target)
        lost = {"parts": None, "reasoning": None, "token_count": None}
        for message in (msgspec.structs.replace(edited, content=text, **lost), *rest):
            transcript.add(message, self.now)
        self.changed(session_id, head)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data):
        session_id, transcript = self.pick(data)
        assert self.store.delete_session(session_id) == len(transcript.rows)
        del self.model[session_id]

    # What does not change them

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def touch_everything_but_the_transcript(self, data):
        session_id, _ = self.pick(data)
        self.store.set_session_title(session_id, f"Title of {session_id}")
        self.store.set_system_prompt(session_id, "be brief")
        self.store.update_token_counts(session_id, Usage(input_tokens=3))
        self.store.try_acquire_compression_lock(session_id, "somebody")
        self.store.end_session(session_id, "agent_close")
        self.store.reopen_session(session_id)

    @rule(size=st.integers(1, 8))
    def index_a_little(self, size):
        done = self.store.transact(lambda tx: search.index_some(tx, size))
        assert 0 <= done <= size
        if done == 0:  # indexing stops here if everything is indexed
            assert not self.store.snapshot(search.unindexed)

    @rule()
    def forget_the_word_forms(self):
        """As after the upgrade from a version without them."""
        self.store.transact(_forget_word_forms)

    @rule(size=st.integers(1, 8))
    def index_some_word_forms(self, size):
        assert self.store.transact(lambda tx: word_forms.add_step(tx, size)) <= size

    @rule(query=queries)
    def find(self, query):
        hits = self.store.search_messages(query, limit=10_000)
        wanted = {
            row.id: session_id
            for session_id, transcript in self.model.items()
            for row in transcript.live
            if matches(row, query)
        }
        assert {hit.message_id: hit.session_id for hit in hits} == wanted
        assert len(hits) == len(wanted)
        for hit in hits:
            live = self.model[hit.session_id].live
            place = [row.id for row in live].index(hit.message_id)
            before, after = live[place - 1 : place], live[place + 1 : place + 2]
            assert hit.before == (before[0].content or "" if before else None)
            assert hit.after == (after[0].content or "" if after else None)

    @rule()
    def rebuild(self):
        self.store.rebuild_search()

    @rule()
    def check(self):
        assert self.store.check_search() is None
        assert self.store.integrity_check() == []

    @invariant()
    def rows_and_counters_agree(self):
        for session_id, transcript in (self.model or {}).items():
            session = self.store.get_session(session_id)
            assert session.head == self.expected_head(session_id)
            assert session.tool_call_count == sum(len(row.tool_calls) for row in transcript.live)
            assert self.store.get_messages(session_id) == transcript.live
            assert self.store.get_messages(session_id, include_rewound=True) == transcript.rows


SearchMachine.TestCase.settings = settings(
    deadline=None,
    max_examples=40,
    stateful_step_count=40,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestSearchMachine = SearchMachine.TestCase
