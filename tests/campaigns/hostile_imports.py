"""Hostile imports: homes of hermes-agent and exported sessions that are broken in many ways.

An import succeeds, or raises one sentence; what the store had before stays as it was.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil

import apsw

from hermes.errors import HermesError
from hermes.messages import Message
from hermes.store import SessionStore
from tests.support.agent_homes import Home
from tests.support.agent_imports import run_import

DEEP = "[" * 50_000 + "]" * 50_000
VALUES = (
    None, "", 0, -1, 2**62, 1e308, -math.inf, "x" * 1_000_000, b"\xff\x00blob", DEEP, "\x00\u202e",
    "{", '{"a": NaN}', "compression", "a", "b", "s0", '[{"id": 1}]', 10**15,
)  # fmt: skip
ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
MUTANTS = {
    "changes what was there": "AFTER INSERT ON sessions WHEN NEW.id <> 'mine' BEGIN "
    "UPDATE sessions SET title = 'theirs' WHERE id = 'mine'; END",
}


def fill(home, dice):
    """Write sessions, with values of the wrong type and size here and there."""
    for number in range(dice.randint(1, 6)):
        home.session(f"s{number}", "hello", "hi", "more")
    for _ in range(dice.randint(0, 8)):
        table = dice.choice(["sessions", "messages", "messages", "gateway_routing"])
        columns = [row[1] for row in home.run(f"PRAGMA table_info({table})")]
        if columns:
            column = dice.choice(columns)
            with contextlib.suppress(apsw.Error):  # not every value fits everywhere
                home.run(f"UPDATE {table} SET {column} = ? WHERE rowid % 2", dice.choice(VALUES))
    if dice.random() < 0.3:
        home.run("UPDATE sessions SET parent_session_id = iif(id = 's0', 's1', 's0')")


def endless(home, dice):
    """Replace a table by a view without an end."""
    table = dice.choice(["sessions", "messages"])
    columns = [row[1] for row in home.run(f"PRAGMA table_info({table})")]
    names = ", ".join("i" if name == "id" else f"'x' AS {name}" for name in columns)
    home.run(f"DROP TABLE {table}")
    home.run(f"CREATE VIEW {table} ({', '.join(columns)}) AS {ENDLESS} SELECT {names} FROM n")


def damage(folder, dice):
    """Damage the file of a home, or put something else in its place."""
    file = folder / "state.db"
    match dice.choice(["flip", "flip", "truncate", "fifo", "device", "folder", "garbage", "sound"]):
        case "flip":
            content = bytearray(file.read_bytes())
            for _ in range(dice.choice([1, 10, 200])):
                content[dice.randrange(len(content))] = dice.randrange(256)
            file.write_bytes(content)
        case "truncate":
            os.truncate(file, dice.randrange(file.stat().st_size))
        case "fifo":
            file.unlink()
            os.mkfifo(file)
        case "device":
            file.unlink()
            file.symlink_to(dice.choice(["/dev/zero", "/dev/null", "/dev/urandom"]))
        case "folder":
            file.unlink()
            file.mkdir()
        case "garbage":
            file.write_bytes(dice.randbytes(50_000))


def hostile_home(folder, dice):
    home = Home(folder, dice.choice([1, 6, 12, 19, 22]))
    try:
        fill(home, dice)
        if dice.random() < 0.1:
            endless(home, dice)
        home.run("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        home.close()
    if dice.random() < 0.7:
        damage(folder, dice)


def hostile_lines(exported, dice):
    """Return lines of an export in which values are replaced."""
    lines = []
    for number in range(dice.randint(1, 4)):
        value = json.loads(exported)
        value["id"] = f"line {number}"
        targets = [value, *value["messages"]]  # the messages themselves may be replaced, too
        for _ in range(dice.randint(0, 3)):
            target = dice.choice(targets)
            bad = dice.choice([each for each in VALUES if not isinstance(each, bytes)])
            target[dice.choice(list(target))] = dice.choice([bad, [bad], {"a": bad}])
        lines.append(json.dumps(value))
    if dice.random() < 0.3:
        lines.append(dice.choice([DEEP, "", "{", "\ud800", "null", "x" * 2_000_000]))
    return lines


def attack(path, dice, rounds, mutant):
    """Import hostile homes and lines. Returns how many imports succeeded, and the violations."""
    found, done = [], 0
    with SessionStore(path) as store:
        store.create_session("mine", session_key="k")
        store.append_messages("mine", [Message("user", f"{number}") for number in range(10)])
        if mutant in MUTANTS:
            store.transact(lambda tx: tx.run(f"CREATE TRIGGER mutant {MUTANTS[mutant]}"))
        exported = before = store.export_session("mine")
        for number in range(rounds):
            folder = path.with_name(f"home{number}")
            try:
                if dice.random() < 0.5:
                    hostile_home(folder, dice)
                    run_import(store, folder)
                else:
                    store.import_sessions(hostile_lines(exported, dice))
                done += 1
            except HermesError as error:
                if "\n" in str(error) or not 0 < len(str(error)) < 1000:
                    found.append(f"round {number}: {str(error)[:300]!r} is no sentence")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
                found.append(f"round {number}: {type(error).__name__}: {str(error)[:300]}")
            shutil.rmtree(folder, ignore_errors=True)
            if store.export_session("mine") != before:
                found.append(f"round {number}: what was there has changed")
        found += store.integrity_check()
    return done, found
