"""What was sent to a model once is sent again as it was, to the byte, whatever happened since."""

from __future__ import annotations

import re
from itertools import pairwise

import attrs
import httpx2
import msgspec
import pytest
import trio
from hypothesis import example, given, settings, strategies as st

from hermes.actors.session import attempts
from hermes.actors.session.attempts import Retry
from hermes.actors.session.running_turn import Mail, RunningTurn
from hermes.agents.chat import ChatAgent, Retries
from hermes.agents.providers.anthropic_messages import AnthropicMessages
from hermes.agents.providers.base import (
    Endpoint,
    Reasoning,
    RequestRefused,
    Said,
    Text,
    Unavailable,
)
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.agents.providers.prompt_cache import Prompts
from hermes.agents.tools.toolbox import ToolOutcome
from hermes.context import TurnContext
from hermes.messages import Extra, Inbound, Message, StoredMessage, ToolCall, TurnResult
from hermes.store.conversations.codec import text_of
from hermes.transcript.render import NO_ANSWER

MARK = re.compile(rb',"cache_control":\{"type":"ephemeral"\}')
NOW = "It is Monday."
SYSTEM = "Be nice."
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
OTHER_THOUGHT = {"type": "reasoning.text", "text": "hm"}
PARTS = (
    {"type": "text", "text": "see"},
    {"type": "image_url", "image_url": {"url": "https://a/b"}},
)

# What a model does when it is asked.


@attrs.frozen
class Answers:
    """It says something and calls tools; before that, tries may break off."""

    text: str = ""
    calls: tuple[str, ...] = ()
    reasoning: str = ""
    details: tuple = ()
    broken: tuple[str, ...] = ()
    """What was heard in tries that broke off."""
    steering: tuple[str, ...] = ()
    """What users say while its tools run."""
    stopped: bool = False
    """Whether the turn is interrupted while its tools run; the first of them is then through."""


@attrs.frozen
class Breaks:
    """It never gets further than this."""

    text: str = ""


@attrs.frozen
class Refuses:
    """It takes no such request."""


@attrs.frozen
class Stopped:
    """The turn is interrupted while it speaks."""

    text: str = ""


# What happens to a session.


@attrs.frozen
class Asked:
    """A turn for these messages."""

    texts: tuple
    plan: tuple


@attrs.frozen
class AskedAgain:
    """/retry: the last turn is taken back and run once more."""

    plan: tuple


@attrs.frozen
class Restarted:
    """The process ends, and all that was not stored is gone."""


class Model:
    """A provider that speaks a real protocol to nobody, and plays a plan."""

    def __init__(self, protocol):
        self.protocol = protocol
        self.plan = []
        self.bodies = []
        self.scope = None
        self.tries = []

    @property
    def endpoint(self):
        return self.protocol.endpoint

    def encode(self, messages):
        return self.protocol.encode(messages)

    def body(self, history, fresh, tail):
        return self.protocol.body(history, fresh, tail)

    async def ask(self, body, hear):
        self.bodies.append(body)
        step = self.plan[0] if self.plan else Answers("the end")
        if isinstance(step, Answers) and len(self.tries) < len(step.broken):
            self.tries.append(step.broken[len(self.tries)])
            return await self.break_off(self.tries[-1], hear)
        if isinstance(step, Breaks):
            return await self.break_off(step.text, hear)
        self.tries = []
        del self.plan[:1]
        if isinstance(step, Refuses):
            raise RequestRefused("no")
        if isinstance(step, Stopped):
            hear(Text(step.text))
            self.scope.cancel()
            await trio.sleep_forever()
        return self.speak(step, hear)

    async def break_off(self, text, hear):
        hear(Reasoning("well"))
        if text:
            hear(Text(text))
        raise Unavailable("broken")

    def speak(self, step, hear):
        self.running = step
        if step.reasoning:
            hear(Reasoning(step.reasoning))
        for letter in step.text:
            hear(Text(letter))
        message = Message(
            "assistant",
            step.text or None,
            tool_calls=tuple(ToolCall(id_, "look", '{"at":1}') for id_ in step.calls),
            reasoning=step.reasoning or None,
            reasoning_details=step.details,
            finish_reason="stop",
        )
        return Said(message)

    async def run(self, call, turn):
        """The tools, too: they are steered and stopped as the plan says."""
        step = self.running
        for number, text in enumerate(step.steering):
            turn.steer(Mail(100 + number, Inbound("k", f"s{number}", text)))
        self.running = attrs.evolve(step, steering=())
        if step.stopped and call.id != step.calls[0]:
            self.scope.cancel()
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return ToolOutcome(f"saw \udcff {call.id}")


class Talk:
    """A conversation in a store of lists, and what must hold of every request in it."""

    def __init__(self, protocol):
        self.model = Model(protocol)
        self.rows = {}
        self.sent = {}
        self.first = {}
        self.ids = iter(range(1, 10_000))
        self.restart()

    def restart(self):
        retries = Retries(tries=3, first_pause=0.0)
        self.agent = ChatAgent(
            self.model, self.model, facts=lambda _: NOW, retries=retries, max_steps=4
        )

    async def play(self, session, event):
        if isinstance(event, Restarted):
            self.restart()
            return
        rows = self.rows.setdefault(session, [])
        again = Retry.of(rows) if isinstance(event, AskedAgain) else None
        if again is None:
            texts = event.texts if isinstance(event, Asked) else ("once more",)
            history, messages = list(rows), [asked(text) for text in texts]
        else:
            history, messages = list(again.history), again.messages
            # What was said in the turn is taken back; what came before it stays.
            kept = len(self.messages_of(history, messages))
            self.sent[session] = self.sent.get(session, [])[:kept]
        turn = await self.turn(session, history, messages, event.plan)
        rows[:] = [*history, *map(self.stored, turn)]

    async def turn(self, session, history, messages, plan):
        turn = RunningTurn(
            TurnContext(session, session, 1),
            [Mail(1, Inbound("k", "e", ""))],
            messages,
            print,
            None,
        )
        turn.history = history
        model = self.model
        model.plan, model.bodies, model.tries = list(plan), [], []
        result = TurnResult(interrupted=True)
        with trio.CancelScope() as model.scope:
            result = await self.agent.run(turn)
        for body in model.bodies:
            self.check(session, body)
        return attempts.rows(turn, result)

    def check(self, session, body):
        *stable, facts = wire(body)
        assert NOW.encode() in facts
        if self.model.endpoint.alternate:
            stable = self.check_turns(stable, facts)
        before = self.sent.get(session, [])
        assert stable[: len(before)] == before
        self.sent[session] = stable

    def check_turns(self, stable, facts):
        roles = [msgspec.json.decode(each)["role"] for each in (*stable, facts)]
        assert not set(pairwise(roles)) & {
            ("user", "user"), ("assistant", "assistant"), ("tool", "user"),
        }  # fmt: skip
        # What was filled in before the facts goes with them.
        filled = bool(stable) and NO_ANSWER.encode() in stable[-1]
        return stable[:-1] if filled else stable

    def messages_of(self, history, messages):
        prompts = Prompts(self.model)
        body = prompts.history("s", history)
        fresh = prompts.fresh("s")
        fresh.add(messages)
        return wire(self.model.body(bytes(body), fresh.encoded, []))

    def stored(self, message):
        """As the store gives it back: through JSON, with halves of characters replaced."""
        extra = {name: getattr(message, name) for name in Extra.__struct_fields__}
        kept = msgspec.json.decode(msgspec.json.encode(Extra(**extra)), type=Extra)
        extra = {name: getattr(kept, name) for name in Extra.__struct_fields__}
        return StoredMessage(next(self.ids), message.role, text_of(message), 5.0, **extra)


def asked(text):
    return Message("user", None, parts=PARTS) if text is PARTS else Message("user", text)


def wire(body):
    """The messages of a request as bytes, without markers, which are no part of what is read."""

    class Request(msgspec.Struct):
        messages: list[msgspec.Raw]

    raw = msgspec.json.decode(body, type=Request).messages
    return [MARK.sub(b"", bytes(message)) for message in raw]


ENDPOINT = Endpoint(base_url="http://nowhere", model="m")
CLIENT = httpx2.AsyncClient()
TOOLS = ({"name": "look", "description": "Look.", "parameters": {"type": "object"}},)
PROTOCOLS = [
    protocol(CLIENT, ENDPOINT, system, tools)
    for protocol in (OpenAIChat, AnthropicMessages)
    for system, tools in [(SYSTEM, TOOLS), (None, ())]
]
ALTERNATING = OpenAIChat(CLIENT, attrs.evolve(ENDPOINT, alternate=True), None, TOOLS)
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
SAID = st.lists(st.sampled_from(["hello", "what?", " ", PARTS]), min_size=1, max_size=2).map(tuple)
EVENTS = st.one_of(
    st.builds(Asked, SAID, PLANS),
    st.builds(Asked, SAID, PLANS),
    st.builds(AskedAgain, PLANS),
    st.just(Restarted()),
)
TALKS = st.lists(st.tuples(st.sampled_from(["s", "t"]), EVENTS), max_size=8)
CALLED = Answers("let me see", ("a", "b"), "hm", (THOUGHT,), ("no",), ("and this",))


@settings(max_examples=300)
@given(protocol=st.sampled_from(PROTOCOLS), talk=TALKS)
@example(PROTOCOLS[0], [("s", Asked(("hi",), (CALLED, Stopped("we"))))] * 2)
@example(PROTOCOLS[2], [("s", Asked(("hi",), (CALLED, Stopped("we"))))] * 2)
@example(PROTOCOLS[2], [("s", Asked(("hi",), (CALLED, Refuses())))] * 2)
@example(PROTOCOLS[0], [("s", Asked(("hi",), (CALLED, Answers())))] * 2)
@example(PROTOCOLS[0], [("s", Asked(("hi",), (CALLED, CALLED))), ("s", AskedAgain((CALLED,)))])
@example(ALTERNATING, [("s", Asked(("hi", "there"), (CALLED, Stopped("we"))))] * 2)
@example(ALTERNATING, [("s", Asked(("hi",), (Refuses(),)))] * 3)
def test_bytes_that_were_sent_never_change(protocol, talk):
    async def play():
        here = Talk(protocol)
        for session, event in talk:
            await here.play(session, event)

    trio.run(play)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=60)
@given(talk=TALKS)
def test_a_history_is_the_same_in_one_piece_and_as_it_grew(protocol, talk):
    async def play():
        here = Talk(protocol)
        grown = Prompts(protocol)
        for session, event in talk:
            await here.play(session, event)
            rows = here.rows.get(session, [])
            assert grown.history(session, rows) == Prompts(protocol).history(session, rows)

    trio.run(play)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_request_without_any_message_is_still_json(protocol):
    body = protocol.body(b"", [], [])
    assert len(wire(body)) == (isinstance(protocol, OpenAIChat) and protocol.system is not None)


def test_many_sessions_do_not_pile_up():
    prompts = Prompts(PROTOCOLS[0])
    for number in range(100):
        prompts.history(f"s{number}", [StoredMessage(1, "user", "hi", 5.0)])
    assert len(prompts._shown) == 16


def test_calls_of_a_turn_get_ids_of_their_own_behind_rows_without_ids():
    protocol = PROTOCOLS[0]
    rows = [
        Message("user", "hi"),
        Message("assistant", None, tool_calls=(ToolCall("a", "look"),)),
        Message("tool", "seen", tool_call_id="a"),
    ]
    prompts = Prompts(protocol)
    prompts.history("s", rows)
    fresh = prompts.fresh("s")
    fresh.add(rows[1:])
    assert b'"id":"a_2"' in fresh.encoded[0]


def test_rows_that_took_the_place_of_others_are_shown_instead_of_them():
    prompts = Prompts(PROTOCOLS[0])
    first = StoredMessage(1, "user", "hi", 5.0)
    prompts.history("s", [first, StoredMessage(2, "assistant", "taken back", 5.0)])
    shown = prompts.history("s", [first, StoredMessage(3, "assistant", "said instead", 5.0)])
    assert b"said instead" in shown
    assert b"taken back" not in shown


def test_anthropic_is_told_where_each_stable_part_ends():
    """Tools, system prompt, history and turn; what is true only now stands behind the last."""
    protocol = PROTOCOLS[2]
    history, fresh = protocol.encode([Message("user", "before"), Message("user", "now")])
    sent = msgspec.json.decode(protocol.body(history, [fresh], [Message("user", NOW)]))
    marked = ["cache_control" in message["content"][-1] for message in sent["messages"]]
    assert marked == [True, True, False]
    assert "cache_control" in sent["tools"][-1]
    assert "cache_control" in sent["system"][-1]


def test_rows_without_ids_are_shown_anew_each_time():
    prompts = Prompts(PROTOCOLS[0])
    for text in ("one", "two"):
        assert text.encode() in prompts.history("s", [Message("user", text)])


@pytest.mark.parametrize(
    ("protocol", "kept"), [(PROTOCOLS[0], b"reasoning.text"), (PROTOCOLS[2], b"signature")]
)
def test_a_model_is_not_shown_what_one_of_another_protocol_thought(protocol, kept):
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
    """Some read them again to fill in a template, and refuse the whole conversation."""
    message = Message("assistant", None, tool_calls=(ToolCall("a", "look", arguments),))
    [call] = msgspec.json.decode(PROTOCOLS[0].encode([message])[0])["tool_calls"]
    read = msgspec.json.decode(call["function"]["arguments"])
    assert isinstance(read, dict)
    assert arguments in {read.get("malformed"), str(read.get("value"))}


@pytest.mark.parametrize("protocol", [PROTOCOLS[0], PROTOCOLS[2]])
@pytest.mark.parametrize("name", ["look.around at:it", "wipe é", "x" * 200, ""])
def test_a_name_that_a_model_made_up_does_not_spoil_the_conversation(protocol, name):
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
def test_words_beside_an_image_are_sent_with_it_and_once(protocol):
    """A caption comes as the text of a message whose parts are the image."""
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
