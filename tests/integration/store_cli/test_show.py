"""`list`, `show` and `search`."""

from __future__ import annotations

import json
import re

import pytest
from rich.cells import cell_len

from hermes.store import SessionStore
from tests.support.store_cli import (
    NOW,
    at_terminal,
    in_subprocess,
    json_lines,
    run,
    without_colors,
)


def test_list_shows_conversations_at_their_tips(filled):
    done = run("list", "--db", filled, how=in_subprocess, check=0)
    assert "talk-2" in done.stdout
    assert "The time #2" in done.stdout
    assert "talk " not in done.stdout
    assert "2027-01-15" in done.stdout
    assert "\x1b" not in done.stdout
    listed = json_lines(run("list", "--db", filled, "--json", check=0))
    assert {line["id"] for line in listed} == {"talk-2", "evil", "old"}
    [tip] = [line for line in listed if line["id"] == "talk-2"]
    assert tip["root_session_id"] == "talk"
    assert (tip["message_count"], tip["last_active"]) == (1, NOW)


def test_list_filters(filled):
    def ids(*options):
        return [line["id"] for line in json_lines(run("list", "--json", *options, "--db", filled))]

    assert ids("--key", "k1") == ids("--session-key", "k1") == ["talk-2"]
    assert set(ids("--platform", "cli")) == {"evil", "old"}
    assert ids("--ended") == ["old"]
    assert set(ids("--open")) == {"talk-2", "evil"}
    assert len(ids("--limit", "1")) == 1
    assert ids("--key", "nobody") == []
    assert run("list", "--key", "nobody", "--db", filled).returncode == 1


def test_show_prints_a_readable_transcript(filled):
    done = run("show", "The time", "--db", filled, env={"TZ": "UTC"}, how=in_subprocess, check=0)
    assert done.stdout.startswith("talk-2  The time #2\ntelegram · big · k1 · compression\n")
    done = run(
        "--db",
        filled,
        "show",
        "talk-2",
        "--all",
        "--rewound",
        env={"TZ": "UTC"},
        how=in_subprocess,
        check=0,
    )
    assert done.stdout.startswith(
        "talk  The time\ntelegram · big · k1 · new\nended 2027-01-15 08:00 (compressed)\n\n"
        "2027-01-15 08:00:00 user\n  What time is it?\n\n"
        '2027-01-15 08:00:00 assistant\n  → clock {"zone": "UTC"}\n\n'
        "2027-01-15 08:00:00 tool clock\n  12:00\n\n"
        "2027-01-15 08:00:00 assistant\n  Noon.\n  Or so.\n\n"
        "2027-01-15 08:00:00 user (rewound)\n  a slip\n\n"
        "talk-2  The time #2\n"
    )
    assert "a slip" not in run("show", "talk", "--db", filled, check=0).stdout
    talk, tip = json_lines(
        run("show", "talk-2", "--all", "--rewound", "--json", "--db", filled, check=0)
    )
    assert [message["live"] for message in talk["messages"]] == [True] * 4 + [False]
    assert talk["messages"][1]["tool_calls"] == [
        {"id": "1", "name": "clock", "arguments": '{"zone": "UTC"}'}
    ]
    assert (talk["system_prompt"], tip["parent_session_id"]) == ("Hm", "talk")


def test_show_accepts_a_prefix_of_an_id_and_reports_an_unknown_session(filled):
    assert run("show", "ol", "--db", filled, check=0).stdout.startswith("old ")
    done = run("show", "nobody\x1b[2J", "--db", filled)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "There is no session nobody␛[2J.\n"


@pytest.mark.parametrize("command", ["show", "export", "archive"])
def test_an_ambiguous_prefix_lists_the_sessions(filled, command):
    with SessionStore(filled) as store:
        for number in range(9):
            store.create_session(f"tall-{number}", "cli")
    done = run(command, "tal", "--db", filled)
    assert (done.returncode, done.stdout) == (2, "")
    first, *lines = done.stderr.splitlines()
    assert first == "several sessions have an id that begins with tal; type more of it:"
    assert lines[:3] == ["  talk  The time", "  talk-2  The time #2", "  tall-0"]
    assert (len(lines), lines[-1]) == (11, "  …")
    done = run(command, "talk-", "--db", filled, check=0)


def test_an_exact_title_wins_over_a_numbered_one_and_is_followed_to_its_tip(filled):
    with SessionStore(filled) as store:
        store.set_session_title("old", "The time #9")
    assert run("show", "The time", "--db", filled, check=0).stdout.startswith("talk-2 ")


@pytest.mark.parametrize("command", ["show", "export"])
def test_a_title_of_several_keys_needs_a_session_key(filled, command):
    with SessionStore(filled) as store:
        store.create_session("other", session_key="k2")
        store.set_session_title("other", "The time")
    done = run(command, "The time", "--db", filled)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "several sessions have the title 'The time': talk (key k1), other (key k2); "
        "use an id or --session-key\n"
    )
    for key, session_id in (("k1", "talk-2"), ("k2", "other")):
        done = run(command, "The time", "--session-key", key, "--db", filled, "--json", check=0)
        assert json_lines(done)[0]["id"] == session_id
    done = run(command, "talk", "--session-key", "k2", "--db", filled)
    assert (done.returncode, done.stderr) == (1, "There is no session talk.\n")


@pytest.mark.parametrize("command", [["show", "evil"], ["list"], ["search", "second"]], ids=str)
@pytest.mark.parametrize("how", ["piped", "json", "terminal"])
def test_control_characters_of_a_transcript_are_never_printed(filled, command, how):
    if how == "terminal":
        output, code = at_terminal(*command, "--db", filled)
        assert code == 0
        output = without_colors(output)
    else:
        options = ["--json"] if how == "json" else []
        forced = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "CLICOLOR_FORCE": "1"}
        output = run(
            *command, *options, "--db", filled, env=forced, how=in_subprocess, check=0
        ).stdout
    assert [c for c in output if (ord(c) < 32 and c not in "\n") or 126 < ord(c) < 160] == []
    assert "\u202e" not in output
    if command[0] == "show" and how != "json":
        assert "␛]0;owned␇" in output
        assert "[bold]x[/bold]" in output


def test_search_finds_words(filled):
    [hit] = json_lines(run("search", "noon", "AND", "so", "--json", "--db", filled, check=0))
    assert (hit["session_id"], hit["role"], hit["title"]) == ("talk", "assistant", "The time")
    assert ">>>Noon<<<" in hit["snippet"]
    assert len(json_lines(run("search", "noon", "--role", "user", "--json", "--db", filled))) == 1
    assert len(json_lines(run("search", "noon", "--limit", "1", "--json", "--db", filled))) == 1
    done = run("search", "nowhere", "--db", filled)
    assert (done.returncode, done.stdout) == (1, "No messages found.\n")
    assert run("search", "noon", "--key", "nobody", "--db", filled).returncode == 1


def test_a_hit_is_two_short_lines(filled):
    with SessionStore(filled) as store:
        for word in ("far", "日本語の文章"):
            store.append_message("evil", "user", f"{f'{word} ' * 30}heron{f' {word}' * 30}")
        store.append_message("evil", "user", "a heron")
    lines = run("search", "heron", "--db", filled, check=0).stdout.splitlines()
    assert len(lines) == 6
    assert all(re.fullmatch(r"evil  \d{4}-\d\d-\d\d \d\d:\d\d  user", line) for line in lines[::2])
    assert "  a heron" in lines[1::2]
    [long] = [line for line in lines if "far" in line]
    assert re.fullmatch(r"  …(far )+heron( far)+ ?f?a?…", long)
    assert 70 < len(long) <= 80
    assert all(cell_len(line) <= 80 and "heron" in line for line in lines[1::2])
    shown, _ = at_terminal("search", "heron", "--db", filled, columns=60)
    assert "a \x1b[1mheron\x1b[0m" in shown
    assert max(map(cell_len, without_colors(shown).splitlines())) <= 60


def test_platforms_and_ends_are_shown_in_words_of_a_user(filled):
    sessions = {
        "asked": ("rpc", "agent:main:console:dm:console", "session_reset", "chat", "reset"),
        "typed": ("console", "agent:main:console:dm:console", "compression", "chat", "compressed"),
        "named": ("rpc", "work", "some_reason", "chat", "some reason"),
        "editor": ("rpc", "agent:main:rpc:dm:1", "agent_close", "client", "closed"),
        "far": ("telegram", "agent:main:telegram:dm:1", "shutdown", "telegram", "shutdown"),
    }
    with SessionStore(filled) as store:
        for name, (source, key, end, *_) in sessions.items():
            store.create_session(name, source, session_key=key)
            store.append_message(name, "user", "hello")
            store.end_session(name, end)
    listed = run("list", "--ended", "--db", filled, check=0).stdout
    pruned = run("prune", "--older-than", "0d", "--dry-run", "--db", filled, check=0).stdout
    stored = {line["id"]: line for line in json_lines(run("list", "--json", "--db", filled))}
    for name, (source, _, end, platform, state) in sessions.items():
        assert re.search(rf"^{name} +hello +{platform} .* {state}$", listed, re.MULTILINE)
        assert re.search(rf"^{name} +{platform} ", pruned, re.MULTILINE)
        shown = run("show", name, "--db", filled, check=0).stdout.splitlines()
        assert (shown[1].split()[0], shown[2].endswith(f"({state})")) == (platform, True)
        assert (stored[name]["source"], stored[name]["end_reason"]) == (source, end)
    done = run("list", "--platform", "chat", "--db", filled)
    assert (done.returncode, "console (a chat) or rpc" in done.stderr) == (2, True)


def test_a_misspelled_command_is_recognized(filled):
    done = run("--db", filled, "serch", "noon")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(": there is no command 'serch'; did you mean search?\n")
    assert run("xyzzy").stderr.endswith(" store --help\n")


def test_archived_conversations_and_subagents_are_listed_if_asked_for(filled):
    def ids(*options):
        return {line["id"] for line in json_lines(run("list", "--json", *options, "--db", filled))}

    with SessionStore(filled) as store:
        store.create_session("sub", "cli", parent_session_id="evil", kind="subagent")
    done = run("archive", "The time", "--db", filled, check=0)
    assert done.stdout == "Archived: talk-2.\n"
    assert ids() == {"evil", "old"}
    assert ids("--archived") == {"talk-2", "evil", "old"}
    assert ids("--subagents") == {"evil", "old", "sub"}
    table = run("list", "--archived", "--subagents", "--db", filled, check=0).stdout
    assert "archived" in table
    assert "subagent" in table
    assert "\narchived 20" in run("show", "talk-2", "--db", filled, check=0).stdout
    [shown] = json_lines(run("archive", "talk", "--undo", "--json", "--db", filled, check=0))
    assert shown["archived"] is False
    assert ids() == {"talk-2", "evil", "old"}
    assert run("archive", "nobody", "--db", filled).returncode == 1


def test_search_marks_what_hermes_agent_had_compacted(path):
    message = {"seq": 1, "role": "user", "timestamp": NOW, "content": "a heron"}
    line = {
        "format": "hermes-session-1", "id": "a", "source": "cli", "kind": "new",
        "started_at": NOW, "last_active": NOW,
        "messages": [{**message, "live": False, "compacted": True}],
    }  # fmt: skip
    run("import", "-", "--db", path, text=json.dumps(line), check=0)
    assert "user (compacted)" in run("search", "heron", "--db", path, check=0).stdout
