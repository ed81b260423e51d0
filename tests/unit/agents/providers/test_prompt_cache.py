"""What was sent to a model is sent again byte for byte, whatever has happened in between."""

from __future__ import annotations

import re
from itertools import pairwise

import attrs
import httpx2
import msgspec
import pytest
import trio
from hypothesis import example, given, strategies as st

from hermes.agents.chat import ChatAgent
from hermes.agents.providers.anthropic_messages import AnthropicMessages
from hermes.agents.providers.base import (
    Completion,
    Endpoint,
    FileBody,
    RequestRejected,
    Unavailable,
)
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.agents.providers.prompt_cache import PromptCache
from hermes.agents.providers.retries import Retries
from hermes.agents.tools.toolbox import ToolOutcome
from hermes.events import ReasoningDelta, TextDelta
from hermes.messages import Extra, Message, StoredMessage, ToolCall, TurnResult
from hermes.store.conversations.codec import text_of
from hermes.transcript.compaction import as_message, is_question
from hermes.transcript.render import NO_ANSWER
from tests.support.examples import examples
from tests.support.turns import running_turn, steer

BREAKPOINT = re.compile(rb',"cache_control":\{"type":"ephemeral"\}')
NOW = "It is Monday."
SYSTEM = "Be nice."
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
OTHER_THOUGHT = {"type": "reasoning.text", "text": "hm"}
PARTS = (
    {"type": "text", "text": "see"},
    {"type": "image_url", "image_url": {"url": "https://a/b"}},
)
FILES = (
    {"type": "text", "text": "see"},
    {"type": "image", "file": "file_1", "media_type": "image/png", "name": "a.png", "size": 12},
    {"type": "audio", "file": "file_2", "media_type": "audio/ogg", "size": 5, "text": "hello"},
    {"type": "file", "file": "file_3", "media_type": "application/pdf", "size": 10**9},
)
SLOT = re.compile(rb"\0[^\0]*\0([^\0]*)\0([^\0]*)\0[^\0]*\0")

# What the model does with a request.


@attrs.frozen
class Answers:
    """It answers and calls tools; attempts before that may break off."""

    text: str = ""
    calls: tuple[str, ...] = ()
    reasoning: str = ""
    details: tuple = ()
    broken: tuple[str, ...] = ()
    """The texts of the attempts that broke off."""
    steering: tuple[str, ...] = ()
    """What the user sends while the tools run."""
    stopped: bool = False
    """Whether the turn is interrupted while the tools run, after the first of them."""


@attrs.frozen
class Breaks:
    """Every attempt breaks off after this text."""

    text: str = ""


@attrs.frozen
class Refuses:
    """It rejects the request."""


@attrs.frozen
class Stopped:
    """The turn is interrupted during the answer."""

    text: str = ""


# What happens to a session.


@attrs.frozen
class Asked:
    """A turn for these messages."""

    texts: tuple
    plan: tuple


@attrs.frozen
class AskedAgain:
    """/retry: the last turn is undone and run again."""

    plan: tuple


@attrs.frozen
class Restarted:
    """The process restarts, and everything that was not stored is lost."""


class Model:
    """A provider with a real protocol but without a network, and a toolbox; follows a plan."""

    def __init__(self, protocol):
        self.protocol = protocol
        self.plan = []
        self.bodies = []
        self.scope = None
        self.attempts = []

    @property
    def endpoint(self):
        return self.protocol.endpoint

    def encode(self, messages):
        return self.protocol.encode(messages)

    def body(self, history, new, suffix):
        return self.protocol.body(history, new, suffix)

    async def complete(self, body, on_delta):
        self.bodies.append(body)
        step = self.plan[0] if self.plan else Answers("the end")
        if isinstance(step, Answers) and len(self.attempts) < len(step.broken):
            self.attempts.append(step.broken[len(self.attempts)])
            return await self.break_off(self.attempts[-1], on_delta)
        if isinstance(step, Breaks):
            return await self.break_off(step.text, on_delta)
        self.attempts = []
        del self.plan[:1]
        if isinstance(step, Refuses):
            raise RequestRejected("no")
        if isinstance(step, Stopped):
            on_delta(TextDelta(step.text))
            self.scope.cancel()
            await trio.sleep_forever()
        return self.answer(step, on_delta)

    async def break_off(self, text, on_delta):
        on_delta(ReasoningDelta("well"))
        if text:
            on_delta(TextDelta(text))
        raise Unavailable("broken")

    def answer(self, step, on_delta):
        self.running = step
        if step.reasoning:
            on_delta(ReasoningDelta(step.reasoning))
        for letter in step.text:
            on_delta(TextDelta(letter))
        message = Message(
            "assistant",
            step.text or None,
            tool_calls=tuple(ToolCall(id_, "look", '{"at":1}') for id_ in step.calls),
            reasoning=step.reasoning or None,
            reasoning_details=step.details,
            finish_reason="stop",
        )
        return Completion(message)

    async def run(self, call, turn):
        """Run a tool call; the turn is steered and stopped as the plan says."""
        step = self.running
        steer(turn, *step.steering)
        self.running = attrs.evolve(step, steering=())
        if step.stopped and call.id != step.calls[0]:
            self.scope.cancel()
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return ToolOutcome(f"saw \udcff {call.id}")


class Conversation:
    """Sessions in memory, with a check of every request."""

    def __init__(self, protocol):
        self.model = Model(protocol)
        self.rows = {}
        self.sent = {}
        self.first = {}
        self.ids = iter(range(1, 10_000))
        self.restart()

    def restart(self):
        retries = Retries(max_attempts=3, first_delay=0.0)
        self.agent = ChatAgent(
            self.model, self.model, facts=lambda _: NOW, retries=retries, max_steps=4
        )

    async def play(self, session, event):
        if isinstance(event, Restarted):
            self.restart()
            return
        rows = self.rows.setdefault(session, [])
        again = isinstance(event, AskedAgain) and any(map(is_question, rows))
        if not again:
            texts = event.texts if isinstance(event, Asked) else ("once more",)
            history, messages = list(rows), [asked(text) for text in texts]
        else:
            history, messages = last_question(rows)
            # Only the turn that is undone may change.
            kept = len(self.messages_of(history, messages))
            self.sent[session] = self.sent.get(session, [])[:kept]
        turn = await self.turn(session, history, messages, event.plan)
        rows[:] = [*history, *map(self.stored, turn)]

    async def turn(self, session, history, messages, plan):
        turn = running_turn(*messages, session=session)
        turn.history = history
        model = self.model
        model.plan, model.bodies, model.attempts = list(plan), [], []
        result = TurnResult(interrupted=True)
        with trio.CancelScope() as model.scope:
            result = await self.agent.run(turn)
        for body in model.bodies:
            self.check(session, body)
        return await turn.transcript_rows(result)

    def check(self, session, body):
        *stable, facts = messages_in(body)
        assert NOW.encode() in facts
        if self.model.endpoint.alternate_roles:
            stable = self.check_roles(stable, facts)
        before = self.sent.get(session, [])
        assert stable[: len(before)] == before
        self.sent[session] = stable

    def check_roles(self, stable, facts):
        roles = [msgspec.json.decode(each)["role"] for each in (*stable, facts)]
        assert not set(pairwise(roles)) & {
            ("user", "user"), ("assistant", "assistant"), ("tool", "user"),
        }  # fmt: skip
        # A message that was inserted before the facts is not stable either.
        filled = bool(stable) and NO_ANSWER.encode() in stable[-1]
        return stable[:-1] if filled else stable

    def messages_of(self, history, messages):
        prompts = PromptCache(self.model)
        encoded = prompts.history("s", history)
        turn = prompts.start_turn("s")
        turn.add(messages)
        return messages_in(self.model.body(bytes(encoded), turn.encoded, []))

    def stored(self, message):
        """The message as the store returns it: through JSON, with lone surrogates replaced."""
        extra = {name: getattr(message, name) for name in Extra.__struct_fields__}
        kept = msgspec.json.decode(msgspec.json.encode(Extra(**extra)), type=Extra)
        extra = {name: getattr(kept, name) for name in Extra.__struct_fields__}
        return StoredMessage(next(self.ids), message.role, text_of(message), 5.0, **extra)


def last_question(rows):
    """The rows before the last question, and its messages."""
    end = max(index for index, row in enumerate(rows) if is_question(row)) + 1
    start = end - 1
    while start > 0 and is_question(rows[start - 1]):
        start -= 1
    return rows[:start], [as_message(row) for row in rows[start:end]]


def asked(text):
    return Message("user", text) if isinstance(text, str) else Message("user", None, parts=text)


def messages_in(body):
    """The encoded messages of a request, without cache breakpoints and the content of files."""

    class Request(msgspec.Struct):
        messages: list[msgspec.Raw]

    encoded = body.encoded if isinstance(body, FileBody) else body
    raw = msgspec.json.decode(SLOT.sub(rb"\1\2", encoded), type=Request).messages
    return [BREAKPOINT.sub(b"", bytes(message)) for message in raw]


ENDPOINT = Endpoint(base_url="http://nowhere", model="m")
CLIENT = httpx2.AsyncClient()
TOOLS = ({"name": "look", "description": "Look.", "parameters": {"type": "object"}},)
PROTOCOLS = [
    protocol(CLIENT, ENDPOINT, system, tools)
    for protocol in (OpenAIChat, AnthropicMessages)
    for system, tools in [(SYSTEM, TOOLS), (None, ())]
]
ALTERNATING = OpenAIChat(CLIENT, attrs.evolve(ENDPOINT, alternate_roles=True), None, TOOLS)
PROTOCOLS.append(ALTERNATING)

WORDS = st.sampled_from(["", "yes", "no", "nobody", " \n", "“maybe”"])
CALLS = st.lists(st.sampled_from(["a", "b", "a_2", "call_0"]), max_size=3, unique=True).map(tuple)
STEPS = st.builds(
    Answers,
    text=WORDS,
    calls=CALLS,
    reasoning=st.sampled_from(["", "hm", "well, hm"]),
    details=st.sampled_from([(), (THOUGHT,), (OTHER_THOUGHT,)]),
    broken=st.lists(WORDS, max_size=2).map(tuple),
    steering=st.lists(st.sampled_from(["and this", "stop that", " "]), max_size=2).map(tuple),
    stopped=st.sampled_from([False, False, False, True]),
)
ENDS = st.one_of(
    STEPS, STEPS, st.builds(Breaks, WORDS), st.just(Refuses()), st.builds(Stopped, WORDS)
)
PLANS = st.tuples(st.lists(STEPS, max_size=3), ENDS).map(lambda drawn: (*drawn[0], drawn[1]))
SAID = st.lists(st.sampled_from(["hello", "what?", " ", PARTS, FILES]), min_size=1, max_size=2).map(
    tuple
)
EVENTS = st.one_of(
    st.builds(Asked, SAID, PLANS),
    st.builds(Asked, SAID, PLANS),
    st.builds(AskedAgain, PLANS),
    st.just(Restarted()),
)
CONVERSATIONS = st.lists(st.tuples(st.sampled_from(["s", "t"]), EVENTS), max_size=8)
CALLED = Answers("let me see", ("a", "b"), "hm", (THOUGHT,), ("no",), ("and this",))


@examples(300)
@given(protocol=st.sampled_from(PROTOCOLS), events=CONVERSATIONS)
@example(PROTOCOLS[0], [("s", Asked(("hi",), (CALLED, Stopped("we"))))] * 2)
@example(PROTOCOLS[2], [("s", Asked(("hi",), (CALLED, Stopped("we"))))] * 2)
@example(PROTOCOLS[2], [("s", Asked(("hi",), (CALLED, Refuses())))] * 2)
@example(PROTOCOLS[0], [("s", Asked(("hi",), (CALLED, Answers())))] * 2)
@example(PROTOCOLS[0], [("s", Asked(("hi",), (CALLED, CALLED))), ("s", AskedAgain((CALLED,)))])
@example(ALTERNATING, [("s", Asked(("hi", "there"), (CALLED, Stopped("we"))))] * 2)
@example(ALTERNATING, [("s", Asked(("hi",), (Refuses(),)))] * 3)
def test_bytes_that_were_sent_never_change(protocol, events):
    async def play():
        conversation = Conversation(protocol)
        for session, event in events:
            await conversation.play(session, event)

    trio.run(play)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@examples(60)
@given(events=CONVERSATIONS)
def test_a_history_is_the_same_in_one_piece_and_as_it_grew(protocol, events):
    async def play():
        conversation = Conversation(protocol)
        grown = PromptCache(protocol)
        for session, event in events:
            await conversation.play(session, event)
            rows = conversation.rows.get(session, [])
            assert grown.history(session, rows) == PromptCache(protocol).history(session, rows)

    trio.run(play)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_request_without_any_message_is_still_json(protocol):
    body = protocol.body(b"", [], [])
    assert len(messages_in(body)) == (
        isinstance(protocol, OpenAIChat) and protocol.system is not None
    )


def test_the_number_of_cached_sessions_is_bounded():
    prompts = PromptCache(PROTOCOLS[0])
    for number in range(100):
        prompts.history(f"s{number}", [StoredMessage(1, "user", "hi", 5.0)])
    assert len(prompts._histories) == 16


def test_tool_call_ids_of_a_turn_are_unique_after_rows_without_ids():
    protocol = PROTOCOLS[0]
    rows = [
        Message("user", "hi"),
        Message("assistant", None, tool_calls=(ToolCall("a", "look"),)),
        Message("tool", "seen", tool_call_id="a"),
    ]
    prompts = PromptCache(protocol)
    prompts.history("s", rows)
    turn = prompts.start_turn("s")
    turn.add(rows[1:])
    assert b'"id":"a_2"' in turn.encoded[0]


def test_rows_that_replace_others_are_encoded_instead_of_them():
    prompts = PromptCache(PROTOCOLS[0])
    first = StoredMessage(1, "user", "hi", 5.0)
    prompts.history("s", [first, StoredMessage(2, "assistant", "taken back", 5.0)])
    shown = prompts.history("s", [first, StoredMessage(3, "assistant", "said instead", 5.0)])
    assert b"said instead" in shown
    assert b"taken back" not in shown


def test_anthropic_gets_a_breakpoint_after_each_stable_part():
    """Tools, system prompt, history and turn; the facts of the moment follow the last one."""
    protocol = PROTOCOLS[2]
    history, new = protocol.encode([Message("user", "before"), Message("user", "now")])
    sent = msgspec.json.decode(protocol.body(history, [new], [Message("user", NOW)]))
    marked = ["cache_control" in message["content"][-1] for message in sent["messages"]]
    assert marked == [True, True, False]
    assert "cache_control" in sent["tools"][-1]
    assert "cache_control" in sent["system"][-1]


def test_rows_without_ids_are_encoded_again_each_time():
    prompts = PromptCache(PROTOCOLS[0])
    for text in ("one", "two"):
        assert text.encode() in prompts.history("s", [Message("user", text)])


@pytest.mark.parametrize(
    ("protocol", "kept"), [(PROTOCOLS[0], b"reasoning.text"), (PROTOCOLS[2], b"signature")]
)
def test_reasoning_of_another_protocol_is_not_sent(protocol, kept):
    message = Message("assistant", "yes", reasoning_details=(THOUGHT, OTHER_THOUGHT))
    (shown,) = protocol.encode([message])
    assert [word in shown for word in (b"reasoning.text", b"signature")].count(True) == 1
    assert kept in shown


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a":1}', b'"input":{"a":1}'),
        ('{"a":', b'"input":{"malformed":"{\\"a\\":"}'),
        ("[1]", b'"input":{"value":[1]}'),
        ("[" * 5000, b'"input":{"malformed":"[['),
    ],
)
def test_anthropic_is_sent_arguments_as_an_object_whatever_they_are(arguments, shown):
    message = Message("assistant", None, tool_calls=(ToolCall("a", "look", arguments),))
    assert shown in PROTOCOLS[2].encode([message])[0]


@pytest.mark.parametrize("arguments", ['{"a":', "[1]", "", "[" * 5000, "7"])
def test_openai_is_sent_arguments_that_servers_can_read(arguments):
    """Some servers decode them for a chat template, and reject the whole conversation."""
    message = Message("assistant", None, tool_calls=(ToolCall("a", "look", arguments),))
    [call] = msgspec.json.decode(PROTOCOLS[0].encode([message])[0])["tool_calls"]
    read = msgspec.json.decode(call["function"]["arguments"])
    assert isinstance(read, dict)
    assert arguments in {read.get("malformed"), str(read.get("value"))}


@pytest.mark.parametrize("protocol", [PROTOCOLS[0], PROTOCOLS[2]])
@pytest.mark.parametrize("name", ["look.around at:it", "wipe é", "x" * 200, ""])
def test_an_invalid_tool_name_does_not_break_the_conversation(protocol, name):
    message = Message("assistant", None, tool_calls=(ToolCall("a", name),))
    (shown,) = protocol.encode([message])
    found = re.search(rb'"name":"([^"]*)"', shown)
    assert re.fullmatch(rb"[a-zA-Z0-9_-]{1,64}", found[1])


def test_anthropic_is_sent_ids_of_other_models_in_its_own_letters():
    ids = ["functions.look:0", "functions.look_0", "functions:look.0"]
    calls = tuple(ToolCall(id_, "look") for id_ in ids)
    results = [Message("tool", "sea", tool_call_id=id_) for id_ in ids]
    asked, answered = map(
        msgspec.json.decode,
        PROTOCOLS[2].encode([Message("assistant", None, tool_calls=calls), *results]),
    )
    sent = [block["id"] for block in asked["content"]]
    assert sent == [block["tool_use_id"] for block in answered["content"]]
    assert len(set(sent)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", id_) for id_ in sent)


@pytest.mark.parametrize(
    ("image", "shown"),
    [
        ({"url": "https://a/b"}, b'{"type":"url","url":"https://a/b"}'),
        ("data:image/png;base64,AAA=", b'"media_type":"image/png","data":"AAA="'),
        (7, b'"image_url":7'),
    ],
)
def test_anthropic_is_sent_images_in_its_own_form(image, shown):
    message = Message("user", None, parts=({"type": "image_url", "image_url": image},))
    assert shown in PROTOCOLS[2].encode([message])[0]


@pytest.mark.parametrize("protocol", [PROTOCOLS[0], PROTOCOLS[2]])
def test_the_caption_of_an_image_is_sent_with_it_and_once(protocol):
    """A caption is the text of a message whose parts are the image."""
    captioned = Message("user", "what is this?", parts=PARTS[1:])
    (shown,) = protocol.encode([captioned])
    assert shown.count(b"what is this?") == shown.count(b"https://a/b") == 1
    repeated = Message("user", "see", parts=PARTS)
    (shown,) = protocol.encode([repeated])
    assert shown.count(b'"see"') == 1


def test_anthropic_is_sent_no_block_of_blanks():
    message = Message("assistant", " \n", tool_calls=(ToolCall("a", "look"),))
    (shown,) = PROTOCOLS[2].encode([message])
    assert b'"text"' not in shown
