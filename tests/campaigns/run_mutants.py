"""Broken versions of the package that the campaigns on the real bot must find."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.mutants import Mutant, problem

ROOT = Path(__file__).parents[2]

EVERY = [
    Mutant(
        breaks="a turn closes its message",
        file="hermes/store/conversations/turns.py",
        old="inbox.finish(tx, turn.inbox_ids, reply)",
        new="inbox.finish(tx, turn.inbox_ids[1:], reply)",
    ),
    Mutant(
        breaks="a message that was begun is begun again after a crash",
        file="hermes/actors/session/actor.py",
        old="rows = [row for row in unknown if row.attempts < limit]",
        new="rows = [row for row in unknown if row.attempts < 1]",
    ),
    Mutant(
        breaks="every process recognizes an event",
        file="hermes/adapters/jsonrpc/handlers.py",
        old='else f"{name}:{event_id}"',
        new='else f"{name}:{event_id}@{self.epoch}"',
    ),
    Mutant(
        breaks="a failed database is reported",
        file="hermes/run/__main__.py",
        old='sys.stderr.write(f"The database failed: {error}\\n")\n        return 4',
        new="return 0",
    ),
    Mutant(
        breaks="what could not be written is not acknowledged",
        file="hermes/store/group_commit.py",
        old="        db.commit()\n    except BaseException as error:",
        new="        try:\n            db.commit()\n        except apsw.Error:\n            "
        "db.roll_back()\n    except BaseException as error:",
    ),
    Mutant(
        breaks="a compression is only stored if nothing has changed",
        file="hermes/store/conversations/rotation.py",
        old="    if end_reason is not None:\n        return Skipped(",
        new="    return None\n    if end_reason is not None:\n        return Skipped(",
    ),
    Mutant(
        breaks="old rows are deleted by a clock that is believed",
        file="hermes/store/maintenance/cleanup.py",
        old="return erased + _forget(tx, before, self._last_receipt(tx, believed, before))",
        new="return erased + forget_closed(tx)",
    ),
    Mutant(
        breaks="a file that was replaced is noticed before the next commit",
        file="hermes/store/sqlite/guard.py",
        old="            self._check_changed(seen)",
        new="            self._settled = seen",
    ),
]
MUTANTS = {mutant.breaks: mutant for mutant in EVERY}


def mutate(scratch: Path, breaks: str) -> Path:
    """Copy the package with one change; returns the folder to run it from."""
    mutant = MUTANTS[breaks]
    assert problem(ROOT, mutant) is None
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "hermes", scratch / "hermes", ignore=skipped)
    text = (scratch / mutant.file).read_text(encoding="utf-8")
    changed = text.replace(mutant.old, mutant.new)
    (scratch / mutant.file).write_text(changed, encoding="utf-8")
    return scratch
