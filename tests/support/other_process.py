"""Another process that opens the same file with `SessionStore` and changes it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

PROGRAM = """
import json, sys
from hermes.messages import Message, Usage
from hermes.store import Rotation, SessionStore

for line in sys.stdin:
    path, sid, code = json.loads(line)
    with SessionStore(path) as store:
        rows = [] if store.get_session(sid) is None else store.get_messages(sid)
        exec(code)
    print("done", flush=True)
"""


class OtherProcess:
    """A process that runs code on a file; `store`, `sid` and its `rows` are defined there."""

    def __init__(self, process):
        self._process = process

    def run(self, path, session_id, code):
        """Run code, and wait until it is done and the file is closed."""
        self._process.stdin.write(json.dumps([str(path), session_id, code]) + "\n")
        assert self._process.stdout.readline() == "done\n"


@contextmanager
def start_other_process():
    """Start a process that serves many calls: starting one takes longer than most tests."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe, text=True, bufsize=1
    ) as process:
        yield OtherProcess(process)
        process.stdin.close()


APPEND = "store.append_message(sid, 'user', 'theirs')"
COMPRESS = (
    "store.rotate(Rotation(session_id=sid, messages=[Message('user', 'summary')], "
    "rotation_id='r', rewrites=0, upto=rows[-1].id))"
)
CHANGES = {
    "append": "store.append_message(sid, 'assistant', 'news')",
    "edit": "store.edit_message(sid, rows[0].id, 'news')",
    "rewind": "store.rewind(sid, rows[-1].id)",
    "rewrite of equal length": "store.replace_messages(sid, [Message(m.role, 'n') for m in rows])",
    "append and rewind": "store.rewind(sid, store.append_message(sid, 'user').message_id)",
}
"""Changes of a transcript."""
OTHER_CHANGES = {
    "title": "store.set_session_title(sid, 'A title')",
    "automatic title": "assert store.set_auto_title_if_empty(sid, 'An automatic title')",
    "usage": "store.update_token_counts(sid, Usage(input_tokens=5, cost=0.1))",
    "lease": "assert store.try_acquire_compression_lock(sid, 'somebody')",
    "end and reopening": "store.end_session(sid, 'closed'); store.reopen_session(sid)",
    "end by an agent": "store.end_session(sid, 'agent_close')",
    "system prompt": "store.set_system_prompt(sid, 'be brief')",
    "another session": "store.append_message(store.create_session('other'), 'user', 'hi')",
}
"""Changes of a session that leave its transcript as it is."""

every_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
every_other_change = pytest.mark.parametrize("change", OTHER_CHANGES.values(), ids=OTHER_CHANGES)
