"""Paths that users type, files that they attach, and files that they save."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hermes import StoredFile
from hermes.adapters.console.files.commands import LocalFiles
from hermes.adapters.console.files.local import (
    MAX_NAME_BYTES,
    NotSaved,
    file_name,
    open_local,
    save,
    target_of,
)
from hermes.adapters.console.files.paths import (
    MAX_OFFERED,
    find_mentions,
    path_choices,
    split_paths,
)
from hermes.errors import AttachmentRefused, UnknownFile


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A current folder, which is the home folder too, with some files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("cat.png", "my file.pdf", "it's.txt", ".hidden", "a@b"):
        Path(name).write_text(name)
    Path("docs").mkdir()
    Path("docs/notes.md").write_text("notes")
    return tmp_path


# Mentions


@pytest.mark.parametrize(
    ("text", "sent", "names"),
    [
        ("look at @cat.png", "look at cat.png", ["cat.png"]),
        ("@cat.png", "cat.png", ["cat.png"]),
        ("(@cat.png) and @cat.png, twice?", "(cat.png) and cat.png, twice?", ["cat.png"]),
        ("is it @cat.png?!", "is it cat.png?!", ["cat.png"]),
        ('sum up @"my file.pdf".', "sum up my file.pdf.", ["my file.pdf"]),
        ("sum up @'my file.pdf'", "sum up my file.pdf", ["my file.pdf"]),
        ("@~/cat.png @./docs/notes.md", "cat.png notes.md", ["cat.png", "notes.md"]),
        ("@a@b", "a@b", ["a@b"]),
        ("first\n@cat.png\nlast", "first\ncat.png\nlast", ["cat.png"]),
    ],
)
def test_a_path_after_an_at_sign_is_attached_and_its_name_stays_in_the_text(text, sent, names):
    found = find_mentions(text)
    assert (found.text, [path.name for path in found.paths]) == (sent, names)


@pytest.mark.parametrize(
    "text",
    [
        "write to bob@cat.png or cat@example.org",
        "@bob what is @this?",
        "@",
        "@@",
        "@ cat.png",
        "x@cat.png",
        "@/components/Button",
        "see you @... or @. or @/",
        "@pytest.fixture",
        "@" + "x" * 100_000,
        "@" + "!" * 100_000,
        "@nul\0l",
        "@cat.png/inside",
        "@~nobody-has-this-name/x",
    ],
)
def test_other_words_with_an_at_sign_stay_as_they_are(text):
    found = find_mentions(text)
    assert (found.text, found.paths) == (text, [])


def test_two_at_signs_send_a_path_as_text():
    found = find_mentions("@@cat.png and @@bob")
    assert (found.text, found.paths) == ("@cat.png and @@bob", [])


@pytest.mark.parametrize("text", ['@"no such file"', "@./cat.gif", "@~/cat.gif", "@../x/y"])
def test_what_can_only_be_a_path_must_exist(text):
    with pytest.raises(
        AttachmentRefused, match=r"there is no file .*; to send it as text, write @@"
    ):
        find_mentions(text)


# Files


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nope", "nope cannot be read: no such file or directory"),
        ("docs", "docs is a folder; only files can be attached"),
        ("pipe", "pipe is not a regular file"),
        ("/dev/zero", "/dev/zero is not a regular file"),
        ("empty", "empty is empty"),
        ("loop", "loop cannot be read: too many levels of symbolic links"),
        ("nul\0l", "nul\ufffdl is not a path"),
        ("\x1b[2Jx", "␛[2Jx cannot be read: no such file or directory"),
    ],
)
def test_a_file_that_cannot_be_attached_is_refused_in_one_sentence(path, problem):
    os.mkfifo("pipe")  # nobody writes to it
    Path("empty").touch()
    Path("loop").symlink_to("loop")
    with pytest.raises(AttachmentRefused) as refusal:
        open_local(Path(path))
    assert str(refusal.value) == problem


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_refused():
    Path("cat.png").chmod(0)
    with pytest.raises(AttachmentRefused, match=r"cat\.png cannot be read: permission denied"):
        open_local(Path("cat.png"))


@pytest.mark.parametrize(
    ("argument", "paths"),
    [
        ("cat.png docs/notes.md", ["cat.png", "docs/notes.md"]),
        ("my file.pdf", ["my file.pdf"]),
        ('"my file.pdf" cat.png', ["my file.pdf", "cat.png"]),
        (r"my\ file.pdf", ["my file.pdf"]),
        ("it's.txt", ["it's.txt"]),
        ("@cat.png", ["cat.png"]),
        ("~/cat.png", ["{home}/cat.png"]),
    ],
)
def test_the_argument_of_attach_is_a_path_or_words_as_in_a_shell(argument, paths, folder):
    assert [str(path) for path in split_paths(argument)] == [
        path.format(home=folder) for path in paths
    ]


def test_an_open_quotation_mark_is_refused():
    with pytest.raises(ValueError, match="a quotation mark is not closed"):
        split_paths('"cat.png')


# Messages


@pytest.fixture
def files():
    return LocalFiles()


async def send(files, line, *, mentions=True, error=None):
    async with files.prepare(line, mentions=mentions) as message:
        if error is not None:
            raise error
        return message.text, [file.file.read().decode() for file in message.files]


async def attach(files, argument):
    return await files.run(None, f"/attach {argument}", [])


async def test_attached_files_go_with_the_next_message_once(files):
    answer = await attach(files, 'cat.png "my file.pdf"')
    assert not answer.failed
    assert answer.text.startswith("Attached: cat.png, 7 bytes; my file.pdf, 11 bytes. ")
    assert (await attach(files, "")).text == "1. cat.png\n2. my file.pdf"
    assert await send(files, "/status") == ("/status", [])
    assert await send(files, "see @cat.png") == ("see cat.png", ["cat.png", "my file.pdf"])
    assert await send(files, "again") == ("again", [])


async def test_files_go_with_a_message_inside_of_a_command(files):
    assert await send(files, "/queue see @cat.png") == ("/queue see cat.png", ["cat.png"])
    assert await send(files, "/background see @cat.png") == ("/background see @cat.png", [])
    assert await send(files, "//status @cat.png") == ("//status cat.png", ["cat.png"])


async def test_through_a_pipe_an_at_sign_is_only_text(files):
    assert await send(files, "see @cat.png", mentions=False) == ("see @cat.png", [])


async def test_files_are_read_when_the_message_is_sent(files, folder):
    await attach(files, "cat.png")
    (folder / "cat.png").write_text("changed")
    assert await send(files, "see") == ("see", ["changed"])


async def test_files_stay_attached_if_the_message_is_not_accepted(files, folder):
    await attach(files, "cat.png")
    with pytest.raises(AttachmentRefused) as refusal:
        await send(files, "see", error=AttachmentRefused("it is too large"))
    assert str(refusal.value) == "cat.png: it is too large"
    (folder / "cat.png").unlink()
    with pytest.raises(AttachmentRefused) as refusal:
        await send(files, "see")
    assert str(refusal.value) == (
        "cat.png cannot be read: no such file or directory; /detach removes it"
    )
    assert (await files.run(None, "/detach", [])).text == "Removed: cat.png."
    assert await send(files, "see") == ("see", [])


async def test_a_folder_in_a_message_is_refused_with_a_way_out(files):
    with pytest.raises(AttachmentRefused) as refusal:
        await send(files, "see @docs")
    assert str(refusal.value) == (
        "docs is a folder; only files can be attached; to send it as text, write @@"
    )
    assert await send(files, "see @@docs") == ("see @docs", [])


async def test_one_of_several_attached_files_can_be_removed(files):
    await attach(files, "cat.png docs/notes.md .hidden")
    assert (await files.run(None, "/detach 2", [])).text == "Removed: notes.md."
    assert (await files.run(None, "/detach .hidden", [])).text == "Removed: .hidden."
    assert (await files.run(None, "/detach 9", [])).failed
    assert (await attach(files, "")).text == "1. cat.png"


# Saving


class Reader:
    """A stored file; `ends` is where its content is deleted."""

    def __init__(self, content, name="chart.png", ends=None):
        self.file = StoredFile(id="f", media_type="image/png", size=len(content), name=name)
        self.content, self.ends = content, ends

    async def read(self, offset=0, size=None):
        if self.ends is not None and offset >= self.ends:
            raise UnknownFile("the file was deleted")
        return self.content[offset : offset + size]


async def test_a_saved_file_never_replaces_another_and_is_private():
    content = os.urandom(700_000)
    saved = [await save(Reader(content), target_of("", Reader(content).file)) for _ in range(3)]
    assert [str(path) for path in saved] == ["chart.png", "chart (1).png", "chart (2).png"]
    assert all(path.read_bytes() == content for path in saved)
    assert {stat.S_IMODE(path.stat().st_mode) for path in saved} == {0o600}


async def test_a_link_is_not_followed(folder):
    (folder / "chart.png").symlink_to("stolen")
    assert str(await save(Reader(b"x"), Path("chart.png"))) == "chart (1).png"
    assert not (folder / "stolen").exists()


async def test_an_incomplete_file_is_not_left_behind(folder):
    with pytest.raises(UnknownFile):
        await save(Reader(b"x" * 700_000, ends=1), Path("chart.png"))
    short = Reader(b"x")
    short.content = b""
    with pytest.raises(NotSaved, match="the file is incomplete"):
        await save(short, Path("chart.png"))
    assert not (folder / "chart.png").exists()


def test_the_path_is_a_folder_or_a_name(folder):
    file = Reader(b"x").file
    assert target_of("", file) == Path("chart.png")
    assert target_of("docs", file) == Path("docs/chart.png")
    assert target_of("~/docs/", file) == folder / "docs/chart.png"
    assert target_of("docs/new.png", file) == Path("docs/new.png")
    for missing in ("nope/", "nope/new.png"):
        with pytest.raises(NotSaved, match="there is no folder nope"):
            target_of(missing, file)


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        ("../../etc/passwd", "passwd"),
        ("..", "image.png"),
        ("C:\\x\\chart.png", "chart.png"),
        (".bashrc", "bashrc"),
        (None, "image.png"),
        ("\x1b]0;x\x07\u202egnp.exe", "␛]0;x␇gnp.exe"),
        ("a\nb.txt", "a b.txt"),
        ("é" * 300 + ".png", "é" * ((MAX_NAME_BYTES - 4) // 2) + ".png"),
        ("x." + "y" * 300, ("x." + "y" * 300)[:MAX_NAME_BYTES]),
    ],
)
def test_the_name_of_a_file_cannot_lead_elsewhere(name, saved):
    assert file_name(Reader(b"x", name).file) == saved


# Completion


def offered(line, command=None):
    return [(each.text, each.replaces) for each in path_choices(line, command)]


def test_paths_are_completed_after_an_at_sign_and_after_attach():
    assert offered("see @c") == [("cat.png", 1)]
    assert offered("see @d") == [("docs/", 1)]
    assert offered("see @docs/") == [("docs/notes.md", 5)]
    assert offered("see @~/c") == [("~/cat.png", 3)]
    assert offered("/attach c", "/attach ") == [("cat.png", 1)]
    assert offered("/attach cat.png do", "/attach ") == [("docs/", 2)]
    assert offered("bob@c") == offered("see c") == offered("@cat.png ") == []


def test_names_with_spaces_are_completed_in_quotes():
    assert offered("@my") == [('"my file.pdf"', 2)]
    assert offered('@"my f') == [('"my file.pdf"', 5)]
    assert offered("@'my f") == [("'my file.pdf'", 5)]
    assert offered("@it") == [('"it\'s.txt"', 2)]
    assert offered("@'it") == []
    Path("my docs").mkdir()
    assert offered('@"my d') == [('"my docs/', 5)]


def test_hidden_names_are_offered_if_a_dot_is_typed_and_hostile_ones_never():
    assert (".hidden", 2) in offered("@.h")
    assert ".hidden" not in [text for text, _ in offered("@")]
    Path("cat\x1b[2J").touch()
    Path('cat"').touch()
    (Path().resolve() / os.fsdecode(b"cat\xff")).touch()
    assert offered("@cat") == [("cat.png", 3)]


def test_the_number_of_offers_is_bounded():
    for number in range(MAX_OFFERED + 10):
        Path(f"many{number:03}").touch()
    assert len(offered("@many")) == MAX_OFFERED
    assert offered("@nope/") == []
