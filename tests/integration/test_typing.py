"""Type checkers accept a program on the public API, and find mistakes in it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests" / "typing" / "sample_program.py"
CHECKERS = {
    "mypy": ["mypy", "--strict"],
    "pyright": ["pyright"],
}


def check(checker, *arguments):
    """Run a type checker in the environment of the tests; return its exit code and its output."""
    name, *options = CHECKERS[checker]
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", name, *options, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


IMPORTS = "import hermes\nimport hermes.agents\nimport hermes.embed\nimport hermes.store\n"
MISTAKES = {
    "hermes.open_runtim": "open_runtim",
    "hermes.embed.start_runtim": "start_runtim",
    "hermes.agents.chat_agent": "chat_agent",
    "hermes.store.SessionStores": "SessionStores",
    "hermes.Inbound('key', 'event')": "text",
    "hermes.TurnResult(txt='hi')": "txt",
    "hermes.Reply.sesion_id": "sesion_id",
}


@pytest.fixture(scope="module", params=CHECKERS)
def output(request, tmp_path_factory):
    """The output of one run of a checker on a correct program and on one with mistakes."""
    folder = tmp_path_factory.mktemp("programs")
    correct, wrong = folder / "correct.py", folder / "wrong.py"
    correct.write_text(f"# pyright: strict\n{SAMPLE.read_text()}")
    wrong.write_text(IMPORTS + "".join(f"print({mistake})\n" for mistake in MISTAKES))
    code, said = check(request.param, correct, wrong)
    assert code == 1, said
    return said


def test_a_program_on_the_public_api_has_no_type_errors(output):
    assert "correct.py" not in output
    assert "wrong.py" in output


def test_mistakes_are_found(output):
    first = IMPORTS.count("\n") + 1
    for line, word in enumerate(MISTAKES.values(), first):
        found = [s for s in output.splitlines() if f"wrong.py:{line}:" in s and word in s]
        assert found, output


def test_every_exported_symbol_has_a_declared_type():
    """No type is unknown, partially unknown, or left to the inference of the type checker."""
    _, said = check("pyright", "--verifytypes", "hermes", "--ignoreexternal", "--outputjson")
    report = json.loads(said[said.index("{") :])["typeCompleteness"]
    assert report["packageRootDirectory"] == str(ROOT / "hermes")
    assert report["pyTypedPath"] == str(ROOT / "hermes" / "py.typed")
    exported = [each for each in report["symbols"] if each["isExported"]]
    assert len(exported) > 1000
    assert [each["name"] for each in exported if not each["isTypeKnown"]] == []
    counts = report["exportedSymbolCounts"]
    assert (counts["withUnknownType"], counts["withAmbiguousType"]) == (0, 0)
