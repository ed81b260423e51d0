"""Files that agents and hosts send, and files in the other verbs of a conversation."""

from __future__ import annotations

import shutil

import pytest
import trio
import trio.testing

from hermes import Attachment, Inbound, MessagePosted, Source, StoredFile, WaitingMessage
from hermes.errors import UnknownFile
from hermes.messages import Message, TurnResult
from hermes.protocols import Adapter, HasLocal
from hermes.testing import CountingBuilder, MemoryAdapter, ScriptedAgent, inspect
from tests.support.files import png
from tests.support.held_turns import HeldAgent, held_runtime
from tests.support.runtime import SECONDS, with_threads

CHAT = Source("memory", "bot", "chat", user_id="ann")
CAT = png()
CAT_LINE = f"[image cat.png, {len(CAT)} bytes]"


def cat():
    return Attachment(data=CAT, name="cat.png")


def scripted(*script):
    return CountingBuilder(lambda _: ScriptedAgent(script))


class TextAdapter(Adapter, HasLocal):
    """An adapter that cannot send files."""

    platform, local = "memory", True

    def __init__(self):
        self.texts, self._arrived = [], trio.Event()

    async def send(self, row, /):
        self.texts.append(row.body["text"])
        self._arrived.set()

    async def wait_sent(self):
        await self._arrived.wait()


# Replies


@with_threads
@pytest.mark.parametrize("text", ["a chart", ""])
async def test_an_answer_with_files_is_delivered_stored_and_found_again(start, text):
    adapter, answer = MemoryAdapter(), TurnResult(text=text, files=[cat()])
    async with start(adapters=[adapter], build_agent=scripted(answer)) as runtime:
        conversation = runtime.conversation("k", source=CHAT)
        reply = await conversation.ask("draw", event_id="e")
        [file] = reply.files
        assert (reply.text, file.name, file.media_type) == (text, "cat.png", "image/png")
        with trio.fail_after(SECONDS):
            await adapter.wait_sent(2 if text else 1)
        assert adapter.texts == [*([text] if text else []), ""]
        assert [(sent.file, sent.data) for sent in adapter.files] == [(file, CAT)]
        row = (await conversation.history())[-1]
        assert (row.role, row.content, row.parts) == ("assistant", text or None, (file.part,))
    async with start() as runtime:
        conversation = runtime.conversation("k", source=CHAT)
        assert await conversation.reply_of("e") == reply
        assert await conversation.read_file(file.id) == CAT


async def test_an_adapter_without_files_gets_lines_that_name_them(start):
    adapter = TextAdapter()
    answer = TurnResult(text="two", files=[cat(), Attachment(data=b"x" * 1234)])
    async with start(adapters=[adapter], build_agent=scripted(answer)) as runtime:
        await runtime.ask("k", "draw", source=CHAT)
        with trio.fail_after(SECONDS):
            await adapter.wait_sent()
    assert adapter.texts == [f"two\n{CAT_LINE}\n[file, 1.23 kB]"]


async def test_a_function_that_is_an_agent_may_return_files(start):
    async def draw(turn):
        stored = await turn.put_file(cat())
        return TurnResult(text="here", files=[stored, Attachment(data=b"text", name="a.txt")])

    async with start(agent=draw) as runtime:
        reply = await runtime.ask("k", "draw")
        assert [file.name for file in reply.files] == ["cat.png", "a.txt"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (cat(), "TurnResult.files must be a list of attachments, not Attachment"),
        ([CAT], "an item of TurnResult.files must be an Attachment or a StoredFile, not bytes"),
        ("cat.png", "TurnResult.files must be a list of attachments, not str"),
    ],
)
async def test_files_of_the_wrong_type_fail_the_turn_with_one_sentence(
    start, caplog, files, expected
):
    async with start(build_agent=scripted(TurnResult(text="x", files=files))) as runtime:
        reply = await runtime.ask("k", "draw")
        assert (reply.status, reply.error_kind, reply.files) == ("failed", "TypeError", ())
    assert expected in caplog.text


@with_threads
async def test_a_file_that_cannot_be_attached_costs_only_itself(start, tmp_path, caplog):
    async with start(build_agent=lambda _: agent) as runtime:
        secret = await runtime.conversation("other").put_file(Attachment(data=b"secret"))
        forged = StoredFile(id=secret.id, media_type="text/plain", size=6, name="a\nb.txt")
        missing = Attachment(path=tmp_path / "none.txt")
        agent = ScriptedAgent([TurnResult(text="done", files=[forged, cat(), missing])])
        reply = await runtime.ask("k", "draw")
        assert reply.text == (
            "done\n[file a b.txt: it could not be attached]"
            "\n[file none.txt: it could not be attached]"
        )
        assert (reply.status, [file.name for file in reply.files]) == ("complete", ["cat.png"])
        row = (await runtime.conversation("k").history())[-1]
        assert (row.content, len(row.parts)) == (reply.text, 1)
    assert caplog.messages == [
        f"a file of turn 1 is left out: there is no file '{secret.id}' in this conversation",
        "a file of turn 1 is left out: FileNotFoundError: No such file or directory",
    ]


@with_threads
@pytest.mark.sqlite_only("changes the folder of attached files")
async def test_an_answer_is_not_lost_if_the_store_cannot_write_its_file(start, tmp_path, caplog):
    async with start(build_agent=lambda _: agent) as runtime:
        await runtime.conversation("k").put_file(cat())
        [folder] = tmp_path.rglob("*.blobs")
        shutil.rmtree(folder)
        folder.write_text("in the way")
        agent = ScriptedAgent([TurnResult(text="done", files=[cat()])])
        reply = await runtime.ask("k", "draw")
        assert reply.text == "done\n[file cat.png: it could not be attached]"
        assert (reply.status, reply.files) == ("complete", ())
    assert "left out: NotADirectoryError: Not a directory" in caplog.text


async def test_what_is_known_of_a_file_comes_from_the_store(start):
    async def draw(turn):
        stored = await turn.put_file(cat())
        return TurnResult(files=[StoredFile(id=stored.id, media_type="text/html", size=1)])

    async with start(agent=draw) as runtime:
        [file] = (await runtime.ask("k", "draw")).files
        assert (file.media_type, file.size, file.name) == ("image/png", len(CAT), "cat.png")


async def test_files_of_a_turn_that_fails_afterwards_are_not_sent(start):
    adapter = MemoryAdapter()

    def redact(text):
        if "poison" in text:
            raise ValueError("poison")
        return text

    answer = TurnResult(text="poison", files=[cat()])
    async with start(adapters=[adapter], build_agent=scripted(answer), redact=redact) as runtime:
        reply = await runtime.ask("k", "draw", source=CHAT)
        assert (reply.status, reply.files) == ("failed", ())
        with trio.fail_after(SECONDS):
            await adapter.wait_sent(1)
    assert adapter.files == []


async def test_the_agent_sees_texts_and_descriptions_and_the_transcript_only_texts(start):
    builder = CountingBuilder()
    async with start(build_agent=builder) as runtime:
        parts = [{"type": "text", "text": "in a part"}]
        await runtime.ask("k", "look", attachments=[cat()])
        await runtime.ask("k", parts=parts, attachments=[cat()])
        await runtime.ask("k", parts=[{"type": "custom", "value": 1}])
        texts = [turn.text for turn in builder.agents[0].turns]
        assert texts == [f"look\n{CAT_LINE}", f"in a part\n{CAT_LINE}", ""]
        questions = [row.content for row in await runtime.conversation("k").history()][::2]
        assert questions == ["look", "in a part", None]


# Posts


@with_threads
async def test_a_post_may_have_files_and_no_text(start):
    adapter = MemoryAdapter()
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        with runtime.subscribe("k") as events:
            posted = await runtime.post("k", attachments=[cat()])
            event = (await anext(events)).event
            assert isinstance(event, MessagePosted)
            assert event.message == posted
        assert posted.content is None
        assert [part["name"] for part in posted.parts] == ["cat.png"]
        await runtime.conversation("k").post("and", attachments=[cat()])
        with trio.fail_after(SECONDS):
            await adapter.wait_sent(4)
        assert adapter.texts == ["echo: one", "", "and", ""]
        assert [sent.data for sent in adapter.files] == [CAT, CAT]
        with pytest.raises(ValueError, match="text that is not blank, or an attachment"):
            await runtime.post("k", " ", attachments=[])
        assert (await runtime.conversation("k").history())[2] == posted
        await runtime.ask("k", "two", source=CHAT)  # the cached transcript has the posts
        assert len(await runtime.conversation("k").history()) == 6


async def test_a_post_that_is_cancelled_while_it_waits_leaves_no_file(start):
    async with held_runtime(start) as held:
        pending = await held.send("one")
        await held.agent.wait_started()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def post():
                    await held.runtime.post("k", "x", attachments=[cat()])

                nursery.start_soon(post)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        held.agent.release()
        await pending.wait()
        assert await held.history() == [("user", "one"), ("assistant", "answer 0")]
        stored = await held.store.snapshot(lambda tx: tx.all("SELECT id FROM files"))
        assert stored == []


async def test_a_post_is_stored_with_all_of_its_files_or_not_at_all(start):
    async with start() as runtime:
        store, secret = inspect(runtime).store, Attachment(data=b"secret")
        stored = await runtime.conversation("other").put_file(secret)
        with pytest.raises(UnknownFile):
            await store.post("k", "look", Source(), (), [stored.part])
        assert await runtime.conversation("k").history() == []


# Interplay with the other verbs


async def test_waiting_messages_show_their_parts_and_are_answered_together(start):
    async with held_runtime(start) as held:
        runtime, conversation = held.runtime, held.runtime.conversation("k")
        await held.send("first")
        await held.agent.wait_started()
        for event, text in (("e1", "one"), ("e2", "")):
            await runtime.submit(Inbound("k", event, text), attachments=[cat()])
        waiting = [row for row in await conversation.history() if isinstance(row, WaitingMessage)]
        assert [part["name"] for row in waiting[1:] for part in row.parts] == ["cat.png"] * 2
        held.agent.release()
        turn = await held.agent.wait_started(1)
        assert turn.text == f"one\n{CAT_LINE}\n\n{CAT_LINE}"
        held.agent.release()


async def test_a_steered_message_brings_its_file_into_the_running_turn(start):
    taken = []

    async def step(turn):
        await steered.wait()
        taken.extend(turn.steered())
        reader = await turn.open_file(taken[0].parts[0]["file"])
        return f"{len(await reader.read())} bytes"

    steered = trio.Event()
    async with held_runtime(start, HeldAgent(turn0=step)) as held:
        pending = await held.send("one")
        await held.agent.wait_started()
        await held.runtime.conversation("k").steer(attachments=[cat()])
        await held.settle()
        steered.set()
        assert (await pending.wait()).text == f"{len(CAT)} bytes"
        rows = await held.runtime.conversation("k").history()
        assert [bool(row.parts) for row in rows] == [False, True, False]


async def test_a_message_that_is_refused_while_a_turn_runs_frees_its_file(start):
    async with held_runtime(start) as held:
        await held.send("first")
        await held.agent.wait_started()
        reply = await held.runtime.ask("k", "x", attachments=[cat()], when_busy="reject")
        assert reply.status == "refused"
        uses = await held.store.snapshot(lambda tx: tx.all("SELECT file_id FROM inbox_files"))
        assert uses == []
        held.agent.release()


async def test_a_message_that_interrupts_a_turn_brings_its_file(start):
    async with held_runtime(start) as held:
        pending = await held.send("first")
        await held.agent.wait_started()
        another = await held.send("x", attachments=[cat()], when_busy="interrupt")
        assert (await pending.wait()).status == "interrupted"
        assert (await held.agent.wait_started(1)).text == f"x\n{CAT_LINE}"
        held.agent.release()
        assert (await another.wait()).text == "answer 1"


async def test_a_withdrawn_message_frees_its_file(start):
    async with held_runtime(start) as held:
        await held.send("first")
        await held.agent.wait_started()
        receipt = await held.runtime.submit(Inbound("k", "e", "x"), attachments=[cat()])
        assert await held.runtime.withdraw(receipt)
        uses = await held.store.snapshot(lambda tx: tx.all("SELECT file_id FROM inbox_files"))
        assert uses == []
        held.agent.release()


async def test_retry_undo_branch_and_switch_keep_files(start):
    builder = CountingBuilder()
    async with start(build_agent=builder) as runtime:
        conversation = runtime.conversation("k")
        await conversation.ask("look", attachments=[cat()])
        first = (await conversation.history())[0]
        [part] = first.parts
        reply = await conversation.retry()
        assert reply.text == f"echo: look\n{CAT_LINE}"
        assert (await conversation.history())[0].parts == first.parts
        old = await conversation.branch("copy", to="elsewhere")
        elsewhere = runtime.conversation("elsewhere")
        assert (await elsewhere.history())[0].parts == first.parts
        assert await elsewhere.read_file(part["file"]) == CAT
        await conversation.undo()
        assert await conversation.read_file(part["file"]) == CAT  # the row is hidden, not deleted
        before = (await conversation.status()).session_id
        await conversation.new()
        assert await conversation.read_file(part["file"]) == CAT  # of another session of the key
        await conversation.switch(before)
        assert (await conversation.ask("again", parts=[part])).text == f"echo: again\n{CAT_LINE}"
        assert old.changed


async def test_an_export_names_files(start):
    answer = TurnResult(text="seen", files=[cat()])
    async with start(build_agent=scripted(answer, TurnResult(files=[cat()]))) as runtime:
        conversation = runtime.conversation("k")
        await conversation.ask("look", attachments=[cat()])
        await conversation.ask(attachments=[Attachment(data=b"%PDF-1.7", name="invoice.pdf")])
        exported = (await conversation.ask("/export")).text
        assert exported.count(f"look\n{CAT_LINE}") == 1
        assert exported.count(f"seen\n{CAT_LINE}") == 1
        assert exported.count(CAT_LINE) == 3
        assert "[file invoice.pdf, 8 bytes]" in exported


async def test_a_long_text_is_refused_and_a_large_file_is_not(start):
    async with start() as runtime:
        reply = await runtime.ask("k", "x", attachments=[Attachment(data=b"\xff" * 2_000_000)])
        assert reply.text == "echo: x\n[file, 2 MB]"
        with pytest.raises(ValueError, match="the limit is 1000000"):
            await runtime.ask("k", "x" * 1_000_000, attachments=[cat()])
        stored = await inspect(runtime).store.snapshot(lambda tx: tx.all("SELECT id FROM files"))
        assert len(stored) == 1


async def test_the_log_has_no_content(start, caplog):
    caplog.set_level("DEBUG")
    async with start() as runtime:
        await runtime.ask("k", "x", attachments=[Attachment(data=b"top secret", name="s.txt")])
    assert "top secret" not in caplog.text


async def test_an_agent_may_name_files_in_its_own_rows(start):
    async def draw(turn):
        stored = await turn.put_file(cat())
        rows = [Message("assistant", "see", parts=(stored.part,))]
        return TurnResult(text="see", rows=rows)

    async with start(agent=draw) as runtime:
        reply = await runtime.ask("k", "draw")
        row = (await runtime.conversation("k").history())[-1]
        assert (reply.files, row.parts[0]["name"]) == ((), "cat.png")
        assert await runtime.conversation("k").read_file(row.parts[0]["file"]) == CAT
