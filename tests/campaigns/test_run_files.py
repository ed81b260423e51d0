"""C9, on the real bot: nothing is acknowledged and lost after its files were damaged.

Files of the database are removed, truncated, overwritten or replaced while the bot runs. What it
acknowledges afterwards must be in the file that is there then; else it ends with a code, and the
next start works or refuses the file. The number of the accident is the seed.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
from pathlib import Path

import apsw
import pytest
import trio

from hermes.store import SessionStore
from tests.campaigns.run_driver import PATIENCE, ROOT, Prompt, Users, open_bots
from tests.campaigns.run_mutants import mutate

PROMPTS = 6
CHATS = ("chat/1", "chat/2")
EXIT_CODES = {0, 3, 4, 75, -signal.SIGBUS}
"""A process gets SIGBUS if a file is truncated that it has mapped; SQLite maps the -shm file."""


def named(path, suffix):
    return Path(f"{path}{suffix}")


def remove(suffix):
    return lambda path: named(path, suffix).unlink()


def truncate(suffix, share):
    def accident(path):
        with named(path, suffix).open("r+b") as file:
            file.truncate(int(named(path, suffix).stat().st_size * share))

    return accident


def overwrite(suffix, content):
    return lambda path: named(path, suffix).write_bytes(content(path))


def replace(suffix, content):
    def accident(path):
        new = path.with_name("new")
        new.write_bytes(content(path))
        new.replace(named(path, suffix))

    return accident


def garbage(path):
    return b"no database\n" * 10_000


def fill(path):
    """Create a database with a past, whose pages are not in the log of the next process."""
    with SessionStore(path) as store:
        for number in range(60):
            session = store.create_session(f"{path.stem}{number}")
            store.append_message(session, "user", f"{path.stem} " * 300)


def other_store(path):
    """Return the content of another database."""
    other = path.with_name("other.db")
    fill(other)
    return other.read_bytes()


def move_folder(path):
    path.parent.rename(path.parent.with_name("moved"))


def replace_folder(path):
    shutil.copytree(path.parent, path.parent.with_name("copy"))
    move_folder(path)
    path.parent.with_name("copy").rename(path.parent)


ACCIDENTS = {
    "the database is removed": remove(""),
    "the log is removed": remove("-wal"),
    "the shared memory is removed": remove("-shm"),
    "the database is truncated": truncate("", 0),
    "the database is cut": truncate("", 0.5),
    "the log is truncated": truncate("-wal", 0),
    "the log is cut": truncate("-wal", 0.5),
    "the shared memory is truncated": truncate("-shm", 0),
    "the database is overwritten": overwrite("", other_store),
    "the database is overwritten with garbage": overwrite("", garbage),
    "the log is overwritten": overwrite("-wal", garbage),
    "the database is replaced": replace("", other_store),
    "the log is replaced": replace("-wal", garbage),
    "the folder is moved": move_folder,
    "the folder is replaced": replace_folder,
}


def talk(dice, number, chat):
    return Prompt(number, chat, f"{number:04} {'word ' * dice.randint(1, 40)}", None, None)


async def run_case(bots, number, name, patience):
    """Run a bot, let the accident happen, and start another one; returns the violations."""
    home = bots.folder.parent.parent / f"accident{number}"
    bots.folder = home / "data"
    bots.folder.mkdir(parents=True)
    bots.configure()
    fill(bots.path)
    users = Users(
        random.Random(number), chats=CHATS, budget=PROMPTS, next_prompt=talk, patience=patience
    )

    def happen():
        """Damage the files while the bot has nothing to do."""
        ACCIDENTS[name](bots.path)
        users.go_on = lambda: 0
        return PROMPTS

    users.go_on = happen
    bot = await bots.start()
    code, errors = await users.life(bot), bot.errors
    # Damage may cost what was there before, but then the bot must not end as if all was well.
    log = [each for each in users.acknowledged if code == 0 or each.number >= PROMPTS]
    found = [*users.violations, *lost(bots.path, log)]
    if code == 0:
        with SessionStore(bots.path) as store:
            found += store.integrity_check()
    found += unexplained(code, errors)
    if bots.folder.exists():
        found += await resume(bots, patience)
    return [f"{name}: {each}" for each in found]


def lost(path, log):
    """Yield acknowledged messages that the file at this path does not have."""
    events = set()
    with (
        contextlib.suppress(apsw.Error),
        contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as db,
    ):
        events = {row[0] for row in db.execute("SELECT event_id FROM inbox")}
    for prompt in log:
        if f"{prompt.chat}:{prompt.event_id}" not in events:
            yield f"{prompt} was acknowledged afterwards, and is not there"


def unexplained(code, errors):
    """Yield what is wrong with the end of a bot."""
    text = errors.read_text()
    if code not in EXIT_CODES or "Traceback" in text:
        yield f"it ended with {code}: {text}"
    if code > 0 and not text.strip():
        yield f"it ended with {code} and does not say why"


async def resume(bots, patience):
    """Start a bot on what is left; yields what is wrong with it."""
    users = Users(
        random.Random(0), chats=("chat/9",), budget=2, next_prompt=talk, patience=patience
    )
    bots.configure()
    bot = await bots.start()
    code = await users.life(bot)
    found = [*users.violations, *unexplained(code, bot.errors)]
    if code == 0:
        found += lost(bots.path, users.acknowledged)
        with SessionStore(bots.path) as store:
            found += store.integrity_check()
    return found


async def run_cases(folder, numbers, root=ROOT, patience=PATIENCE):
    """Run cases until one has violations, and return these."""
    (folder / "none" / "data").mkdir(parents=True)
    async with open_bots(folder / "none" / "data", root=root) as bots:
        for number in numbers:
            if found := await run_case(bots, number, list(ACCIDENTS)[number], patience):
                return found
    return []


def test_nothing_is_acknowledged_and_lost_after_an_accident(tmp_path, prove, campaign):
    numbers = range(len(ACCIDENTS)) if prove else [0, 4, 5, 6, 8, 12]
    campaign.check(trio.run(run_cases, tmp_path, campaign.seeds(numbers)))
    campaign.count(accidents=len(campaign.used))


@pytest.mark.mutant
def test_the_campaign_finds_a_bot_that_does_not_look_at_its_files(tmp_path):
    root = mutate(tmp_path, "a file that was replaced is noticed before the next commit")
    assert trio.run(run_cases, tmp_path, [0], root, 20.0)
