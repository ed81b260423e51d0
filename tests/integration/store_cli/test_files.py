"""Attached files in the admin commands: `show`, `file`, `export`, `import`, `backup`, `check`."""

from __future__ import annotations

import os
import shutil

import pytest

from hermes.messages import Attachment
from hermes.store import Clock, SessionStore
from hermes.store.sqlite.blobs import BlobFolder
from tests.support.store_cli import NOW, json_lines, run

KEY = "k1"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x03\0\0\0\x05" + b"x" * 20_000


@pytest.fixture
def attached(filled):
    """A file with a conversation that has an image. Returns the image."""
    with SessionStore(filled, clock=Clock(wall=lambda: NOW)) as store:
        store.create_session("seen", "telegram", session_key=KEY)
        file = store.put_file(Attachment(data=PNG, name="cat\x1b.png"), session_key=KEY)
        url = {"type": "image", "url": "https://example.org/a.png"}
        parts = [{"type": "text", "text": "look"}, file.part, url]
        store.append_message("seen", "user", "look", parts=parts)
    return file


def blobs_of(path):
    return {each.name: each.read_bytes() for each in BlobFolder(path).all_blobs()}


def test_show_describes_files_and_names_their_ids(filled, attached):
    shown = run("show", "seen", "--db", filled, check=0).stdout
    assert shown.splitlines()[-4:-1] == [
        "  look",
        f"  [image cat␛.png, 20 kB: {attached.id}]",
        "  [image https://example.org/a.png]",
    ]


def test_a_file_is_saved_by_its_id(filled, attached, tmp_path):
    target = tmp_path / "cat.png"
    done = run("file", attached.id, "--to", target, "--db", filled, check=0)
    assert done.stdout == f"Saved {target} (image/png, 19.6 KiB).\n"
    assert target.read_bytes() == PNG
    assert target.stat().st_mode & 0o777 == 0o600
    again = run("file", attached.id, "--to", target, "--db", filled)
    assert (again.returncode, again.stderr) == (
        3,
        f"{target} already exists; choose another file name\n",
    )
    folder = tmp_path / "saved"
    folder.mkdir()
    [saved] = json_lines(run("file", attached.id, "--to", folder, "--json", "--db", filled))
    [path] = folder.iterdir()
    assert path.read_bytes() == PNG
    assert saved == {
        "id": attached.id,
        "media_type": "image/png",
        "file": str(path),
        "bytes": len(PNG),
    }


def test_a_file_that_is_unknown_lost_or_damaged_is_not_saved(filled, attached, tmp_path):
    target = tmp_path / "cat.png"
    unknown = run("file", "file_\x1b", "--to", target, "--db", filled)
    assert (unknown.returncode, unknown.stderr) == (1, "There is no file file_␛.\n")
    [blob] = BlobFolder(filled).all_blobs()
    blob.write_bytes(PNG[::-1])
    damaged = run("file", attached.id, "--to", target, "--db", filled)
    text = f"the content of {attached.id} is damaged, and was not saved\n"
    assert (damaged.returncode, damaged.stderr) == (4, text)
    blob.unlink()
    lost = run("file", attached.id, "--to", target, "--db", filled)
    assert (lost.returncode, lost.stderr) == (4, f"the file {attached.id} was deleted\n")
    assert list(tmp_path.glob("cat*")) == []


def test_an_export_with_files_can_be_imported_elsewhere(filled, attached, tmp_path):
    other = tmp_path / "other.db"
    exported = run("export", "--all", "--db", filled, check=0).stdout
    done = run("import", "-", "--db", other, text=exported, check=0)
    assert done.stdout == "Imported 5 sessions, 9 messages.\n"
    assert run("export", "--all", "--db", other, check=0).stdout == exported
    assert blobs_of(other) == blobs_of(filled)
    assert run("check", "--full", "--db", other, check=0).stdout == "No problems found.\n"


@pytest.mark.parametrize("damage", ["content", "missing", "cut"])
def test_a_refused_import_leaves_nothing_behind(filled, attached, tmp_path, damage):
    file, session = run("export", "seen", "--db", filled, check=0).stdout.splitlines()
    lines = {
        "content": [file.replace('"data":"iVBO', '"data":"iVBP'), session],
        "missing": [session],
        "cut": [file, session[:-1]],
    }[damage]
    (tmp_path / "lines").write_text("\n".join(lines))
    new = tmp_path / "new"
    new.mkdir()
    done = run("import", tmp_path / "lines", "--db", new / "state.db")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith(f"line {2 if damage == 'cut' else 1} ")
    assert list(new.iterdir()) == []
    before = blobs_of(filled)
    assert run("import", tmp_path / "lines", "--db", filled).returncode == 3
    assert blobs_of(filled) == before


def test_an_export_of_lost_content_fails_and_leaves_nothing(filled, attached, tmp_path):
    shutil.rmtree(BlobFolder(filled).path)
    done = run("export", "seen", "-o", tmp_path / "seen.jsonl", "--db", filled)
    text = f"the file {attached.id} cannot be exported: No such file or directory\n"
    assert (done.returncode, done.stderr) == (4, text)
    assert list(tmp_path.glob("seen*")) == []
    run("export", "old", "-o", tmp_path / "old.jsonl", "--db", filled, check=0)


def test_a_backup_reports_its_files(filled, attached, tmp_path):
    target = tmp_path / "copy.db"
    done = run("backup", target, "--db", filled, check=0)
    assert done.stdout.splitlines()[1:] == [f"Copied 1 attached file to {target}.blobs (19.6 KiB)."]
    assert blobs_of(target) == blobs_of(filled)
    assert run("check", "--full", "--db", target, check=0).stdout == "No problems found.\n"
    [result] = json_lines(run("backup", tmp_path / "again.db", "--json", "--db", filled))
    assert (result["files"], result["file_bytes"]) == (1, len(PNG))


def test_check_says_what_is_lost_and_what_is_unused(filled, attached):
    with SessionStore(filled, clock=Clock(steady=lambda: -10_000.0)) as store:
        unused = store.put_file(Attachment(data=b"unused"), session_key=KEY)
    for blob in BlobFolder(filled).all_blobs():
        os.utime(blob, (0, 0))
    done = run("check", "--db", filled, check=0)
    assert done.stdout.splitlines() == [
        "No problems found.",
        "Nothing names 1 file (6 B) any more; the bot or prune will delete them.",
    ]
    [result] = json_lines(run("check", "--json", "--db", filled, check=0))
    assert (result["unused_files"], result["unused_bytes"]) == (1, 6)
    pruned = run("prune", "--older-than", "2y", "--yes", "--db", filled, check=0)
    assert pruned.stdout.splitlines()[1:] == [
        "Deleted 1 file (6 B) that no conversation names any more."
    ]
    assert run("file", unused.id, "--to", "/nowhere", "--db", filled).returncode == 1
    [blob] = BlobFolder(filled).all_blobs()
    blob.write_bytes(PNG[::-1])
    assert run("check", "--db", filled, check=0).stdout == "No problems found.\n"
    damaged = run("check", "--full", "--db", filled)
    assert (damaged.returncode, damaged.stdout) == (
        1,
        f"the content of {attached.id} is damaged: {blob}\n",
    )
    shutil.rmtree(BlobFolder(filled).path)
    lost = run("check", "--db", filled)
    text = f"{filled}.blobs does not exist, and so the content of 1 files\n"
    assert (lost.returncode, lost.stdout) == (1, text)


def test_prune_deletes_the_files_of_what_it_deletes(filled, path):
    with SessionStore(filled, clock=Clock(wall=lambda: 0.0, steady=lambda: -10_000.0)) as store:
        store.create_session("ancient", "cli", session_key=KEY)
        file = store.put_file(Attachment(data=PNG), session_key=KEY)
        store.append_message("ancient", "user", "look", parts=[file.part])
        store.end_session("ancient", "closed")
    [result] = json_lines(run("prune", "--older-than", "1y", "--dry-run", "--json", "--db", filled))
    assert "files" not in result
    [result] = json_lines(run("prune", "--older-than", "1y", "--yes", "--json", "--db", filled))
    assert (result["session_ids"], result["files"], result["bytes"]) == (["ancient"], 1, len(PNG))
    assert blobs_of(filled) == {}
