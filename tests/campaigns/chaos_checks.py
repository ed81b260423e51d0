"""What must hold in the database after test_chaos, and triggers that note who writes what.

Each life of a node logs in as a separate user, its label. So the triggers can tell which process
changed the owner of a conversation, closed a message or took back a reply, and whether it was
allowed to.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict

from hermes.store import SessionStore
from tests.campaigns.chaos_node import content_of, digest, number_of

AUDIT = """
CREATE TABLE chaos_nodes (node bigint PRIMARY KEY, label text NOT NULL);
CREATE TABLE chaos_log (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  what text NOT NULL, subject text NOT NULL, label text NOT NULL DEFAULT session_user,
  owner bigint, before bigint, old_fence bigint, new_fence bigint,
  before_lives boolean, left_over double precision, query text
);
CREATE FUNCTION chaos_node() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO chaos_nodes VALUES (NEW.id, session_user);
  RETURN NULL;
END $$;
CREATE TRIGGER chaos_node AFTER INSERT ON nodes FOR EACH ROW EXECUTE FUNCTION chaos_node();
CREATE FUNCTION chaos_closed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO chaos_log (what, subject, owner)
  SELECT 'closed', NEW.id, owner FROM routes WHERE session_key = NEW.session_key;
  RETURN NULL;
END $$;
CREATE TRIGGER chaos_closed AFTER UPDATE OF state ON inbox FOR EACH ROW
  WHEN (OLD.state = 'open' AND NEW.state <> 'open') EXECUTE FUNCTION chaos_closed();
-- It is STABLE so that it sees the lease as the statement does.
CREATE FUNCTION chaos_lease_now() RETURNS trigger LANGUAGE plpgsql STABLE AS $$ BEGIN
  PERFORM set_config('chaos.left_over', coalesce((SELECT lease_until -
    extract(epoch FROM statement_timestamp()) FROM nodes WHERE id = NEW.owner)::text, ''), true);
  RETURN NEW;
END $$;
CREATE TRIGGER chaos_lease_now BEFORE UPDATE OF owner ON routes FOR EACH ROW
  WHEN (OLD.owner IS DISTINCT FROM NEW.owner) EXECUTE FUNCTION chaos_lease_now();
CREATE FUNCTION chaos_owned() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO chaos_log
    (what, subject, owner, before, old_fence, new_fence, before_lives, left_over, query)
  VALUES ('owned', NEW.session_key, NEW.owner, OLD.owner, OLD.fence, NEW.fence,
    EXISTS (SELECT 1 FROM nodes WHERE id = OLD.owner AND dead = 0),
    nullif(current_setting('chaos.left_over', true), '')::double precision,
    current_query());
  RETURN NULL;
END $$;
CREATE TRIGGER chaos_owned AFTER UPDATE OF owner ON routes FOR EACH ROW
  WHEN (OLD.owner IS DISTINCT FROM NEW.owner) EXECUTE FUNCTION chaos_owned();
CREATE FUNCTION chaos_role() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO chaos_log (what, subject, owner, before, old_fence, new_fence, before_lives)
  VALUES ('role', NEW.name, NEW.owner, OLD.owner, OLD.fence, NEW.fence,
    EXISTS (SELECT 1 FROM nodes WHERE id = OLD.owner AND dead = 0));
  RETURN NULL;
END $$;
CREATE TRIGGER chaos_role AFTER UPDATE OF owner ON roles FOR EACH ROW
  WHEN (OLD.owner IS DISTINCT FROM NEW.owner) EXECUTE FUNCTION chaos_role();
CREATE FUNCTION chaos_lease() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE holder bigint := split_part(OLD.holder, ':', 2);
BEGIN
  INSERT INTO chaos_log (what, subject, owner, before, before_lives, query)
  VALUES ('released', NEW.session_id,
    (SELECT max(node) FROM chaos_nodes WHERE label = session_user), holder,
    EXISTS (SELECT 1 FROM nodes WHERE id = holder AND dead = 0), current_query());
  RETURN NULL;
END $$;
CREATE TRIGGER chaos_lease AFTER UPDATE OF holder ON leases FOR EACH ROW
  WHEN (OLD.holder LIKE 'runtime:%' AND NEW.holder IS NULL) EXECUTE FUNCTION chaos_lease();
CREATE FUNCTION chaos_sent() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO chaos_log (what, subject, new_fence)
  SELECT CASE NEW.state WHEN 'sending' THEN 'sending' ELSE 'taken back' END, NEW.id,
    (SELECT max(fence) FROM roles WHERE name LIKE 'platform:%');
  RETURN NULL;
END $$;
CREATE TRIGGER chaos_sent AFTER UPDATE OF state ON outbox FOR EACH ROW
  WHEN (NEW.state IN ('sending', 'pending')) EXECUTE FUNCTION chaos_sent();
"""
CLAIMING, FORGETTING = "json_array_elements", "holder LIKE"
"""Parts of the statements by which a node claims conversations, and releases all old leases."""
QUERIES = {
    "a message without an answer": "SELECT event_id, state FROM inbox WHERE state <> 'done'",
    "a message without a stored reply": "SELECT m.event_id FROM inbox m "
    "LEFT JOIN inbox t ON t.id = m.turn_id WHERE t.reply IS NULL",
    "a reply that was not sent": "SELECT id, state FROM outbox WHERE state <> 'sent'",
    "an answer without a reply in the outbox": "SELECT id, reply FROM inbox "
    "WHERE turn_id = id AND reply::json ->> 'status' = 'complete' "
    "AND id NOT IN (SELECT turn_id FROM outbox)",
    "two replies of one turn": "SELECT turn_id FROM outbox "
    "WHERE body::json ->> 'kind' = 'reply' AND turn_id > 0 GROUP BY 1 HAVING count(*) > 1",
    "two rows of one event": "SELECT event_id, scope FROM inbox GROUP BY 1, 2 HAVING count(*) > 1",
    "two commits of one turn": "SELECT id FROM turns GROUP BY 1 HAVING count(*) > 1",
    "a fork": "SELECT parent_no FROM sessions WHERE kind = 'compression' "
    "GROUP BY 1 HAVING count(*) > 1",
    "an end without a child": "SELECT id FROM sessions p WHERE end_reason = 'compression' AND "
    "NOT EXISTS (SELECT 1 FROM sessions c WHERE c.parent_no = p.no AND c.kind = 'compression')",
    "a row that its continuation lacks": "SELECT p.id, m.content FROM sessions c "
    "JOIN sessions p ON p.no = c.parent_no JOIN messages m ON m.id = "
    "(SELECT max(id) FROM messages WHERE id >> 32 = p.no AND live = 1) "
    "WHERE c.kind = 'compression' AND NOT EXISTS (SELECT 1 FROM messages n WHERE n.id >> 32 = c.no "
    "AND n.content IS NOT DISTINCT FROM m.content)",
    "a route to an ended session": "SELECT r.session_key FROM routes r "
    "JOIN sessions s ON s.id = r.session_id WHERE s.ended_at IS NOT NULL",
    "a key in a session of another": "SELECT r.session_key FROM routes r "
    "JOIN sessions s ON s.id = r.session_id WHERE s.session_key <> r.session_key",
    # If the last nodes leave together, the hooks of their end are called after the next start.
    "a boundary without its hook": "SELECT id FROM boundaries "
    "WHERE closed_at IS NULL AND reason <> 'shutdown'",
    "more or fewer resets than commands": "SELECT * FROM (SELECT session_key, count(*) AS made "
    "FROM boundaries WHERE event = 'on_session_reset' GROUP BY 1) b FULL JOIN "
    "(SELECT session_key, count(*) AS wanted FROM inbox WHERE event_id LIKE 'new%' "
    "AND reply::json ->> 'status' = 'command' GROUP BY 1) i USING (session_key) "
    "WHERE made IS DISTINCT FROM wanted",
    "a conversation or role that was taken from a living node": "SELECT l.subject, l.label, "
    "o.label FROM chaos_log l JOIN chaos_nodes o ON o.node = l.before "
    "WHERE what IN ('owned', 'role') AND before_lives AND l.label <> o.label",
    "a lease of a living node that a new one released": "SELECT l.subject, l.label, o.label "
    "FROM chaos_log l JOIN chaos_nodes o ON o.node = l.before "
    f"WHERE what = 'released' AND query LIKE '%{FORGETTING}%' AND before_lives "
    "AND l.before < l.owner AND l.label <> o.label",
    "a new owner without a new fence": "SELECT subject, owner FROM chaos_log "
    "WHERE what IN ('owned', 'role') AND new_fence <= old_fence",
    "a claim without a live lease": "SELECT subject, label, left_over FROM chaos_log "
    f"WHERE what = 'owned' AND query LIKE '%{CLAIMING}%' AND owner IS NOT NULL "
    "AND left_over < 0",
    "a message that was closed by a node which did not serve it": "SELECT l.subject, l.label, "
    "o.label FROM chaos_log l LEFT JOIN chaos_nodes o ON o.node = l.owner "
    "WHERE what = 'closed' AND l.label IS DISTINCT FROM o.label",
    "a reply that was taken back from the node which sent it": "SELECT * FROM "
    "(SELECT subject, what, label, lag(what) OVER w AS what_before, lag(label) OVER w AS begun_by, "
    "new_fence, lag(new_fence) OVER w AS begun_with FROM chaos_log "
    "WHERE what IN ('sending', 'taken back') WINDOW w AS (PARTITION BY subject ORDER BY id)) l "
    "WHERE what = 'taken back' AND what_before = 'sending' AND label <> begun_by "
    "AND new_fence = begun_with",
}
ROWS = (
    "SELECT s.no, s.parent_no, s.kind, s.session_key, m.id, m.role, m.content "
    "FROM messages m JOIN sessions s ON s.no = m.id >> 32 ORDER BY m.id"
)
INBOX = (
    "SELECT m.id, m.event_id, m.session_key, t.reply::json ->> 'status', t.reply::json ->> 'text' "
    "FROM inbox m JOIN inbox t ON t.id = m.turn_id ORDER BY m.id"
)
FILES = "SELECT id, session_key, hash, name FROM files"
ANSWER = re.compile(r"well, ([\d ]+) after (-|\d+) with (.*)")


def violations(url, db, story):
    """Yield what must not be in the database, or is missing, after everything was answered.

    `db` is a connection, and `story` what the clients and the foreign writers know.
    """
    for what, sql in QUERIES.items():
        yield from (f"{what}: {row}" for row in db.execute(sql).fetchall()[:5])
    inbox = db.execute(INBOX).fetchall()
    yield from _lost(inbox, story)
    rows = db.execute(ROWS).fetchall()
    yield from Transcripts(rows, inbox, story).violations()
    yield from _sent_violations(db, story)
    with SessionStore(url) as store:
        yield from store.integrity_check()
        for file_id, key, hash_, name in db.execute(FILES).fetchall():
            data = store.read_file(file_id, session_key=key)
            if hashlib.sha256(data).hexdigest() != hash_ or data != content_of(name):
                yield f"the file {name} of {key} has another content"


def _lost(inbox, story):
    """Yield what clients were told and is not so."""
    ids = {event: inbox_id for inbox_id, event, *_ in inbox}
    texts = {event: text for _, event, _, _, text in inbox}
    for event, told in story.acknowledged.items():
        if told != {ids.get(event)}:
            yield f"{event} was acknowledged as {told}, and is {ids.get(event)}"
    for event, replies in story.replies.items():
        if replies != {texts.get(event)}:
            yield f"{event} was answered {replies}, and the reply is {texts.get(event)!r}"
    yield from (f"{event} was never said" for event in ids.keys() - story.said.keys())


class Transcripts:
    """The rows of all sessions, and what must hold of them."""

    def __init__(self, rows, inbox, story):
        self.story = story
        self.inbox_ids = {event: inbox_id for inbox_id, event, *_ in inbox}
        self.refused = {event for _, event, _, status, _ in inbox if status == "refused"}
        self.keys = {no: key for no, _, _, key, *_ in rows}
        self.parents = {no: parent for no, parent, *_ in rows}
        self.continued = {no for no, _, kind, *_ in rows if kind == "compression"}
        self.sessions = defaultdict(list)
        for no, _, _, _, row_id, role, content in rows:
            self.sessions[no].append((row_id, role, content or ""))

    def violations(self):
        copies = self._copies()
        yield from self._wrong_copies(copies)
        yield from self._wrong_order(copies)
        for no, rows in self.sessions.items():
            yield from self._wrong_answers(no, rows)

    def _copies(self):
        """Return for each text that is to be stored once how often each session has it."""
        copies = defaultdict(Counter)
        for no, rows in self.sessions.items():
            for _, role, content in rows:
                number = number_of(content) if role == "user" else None
                if number is not None:
                    copies[f"e{number}"][no] += 1
                elif content.startswith("foreign ") or ANSWER.fullmatch(content):
                    copies[content][no] += 1
        return copies

    def _wrong_copies(self, copies):
        """A text is stored once; compressions copy it to a child session."""
        for name, sessions in copies.items():
            originals = [no for no in sessions if self.parents[no] not in sessions]
            if len(originals) != 1 or max(sessions.values()) > 1:
                yield f"{name} was stored more than once: {dict(sessions)}"
            key = self.story.said.get(name) or self.story.foreign.get(name)
            if key is not None and {self.keys[no] for no in sessions} != {key}:
                yield f"{name} of {key} is in a session of another key"
        for event in self.story.said:
            if event[0] == "e" and (event in copies) is (event in self.refused):
                yield f"{event} {'was refused' if event in self.refused else 'is in no transcript'}"
        for text in self.story.foreign.keys() - copies.keys():
            yield f"{text!r} was appended and is in no transcript"

    def _wrong_order(self, copies):
        """The messages of a key are stored in the order of their acceptance.

        One that is passed to a running turn may overtake others.
        """
        places = defaultdict(list)
        for no in sorted(self.sessions):
            for _, role, content in self.sessions[no]:
                number = number_of(content) if role == "user" else None
                event = f"e{number}"
                original = number is not None and self.parents[no] not in copies[event]
                if original and event not in self.story.steering:
                    places[self.keys[no]].append(self.inbox_ids.get(event, 0))
        for key, ids in places.items():
            if ids != sorted(ids):
                yield f"{key} has messages in another order: {ids}"

    def _wrong_answers(self, no, rows):
        """Each answer names the messages before it, and the one before these.

        A compression may have summarized what came before the rows that it has copied.
        """
        copied = {content for _, _, content in self.sessions.get(self.parents[no], ())}
        numbers, known = [], []
        for row_id, role, content in rows:
            number = number_of(content) if role == "user" else None
            if number is not None:
                numbers.append(number)
                known.append(content not in copied)
            found = ANSWER.fullmatch(content) if role == "assistant" else None
            if found is None or content in copied:
                continue
            seen = [int(each) for each in found[1].split()]
            where = f"{content!r} of {self.keys[no]} ({row_id}) follows {numbers[-6:]}"
            if numbers[-len(seen) :] != seen:
                yield where
            before, is_known = numbers[: -len(seen)], known[: -len(seen)]
            expected = str(before[-1]) if before else "-"
            if found[2] != expected and (no not in self.continued or is_known[-1:] == [True]):
                yield f"{where}: {found[2]} is not {expected}"
            files = [digest(content_of(f)) for n in seen if (f := self.story.files.get(f"e{n}"))]
            if found[3] != (" ".join(files) or "-"):
                yield f"{where}: wrong files"


def _sent_violations(db, story):
    """Each reply was sent, in order in its lane, and marked if it may have arrived before."""
    outbox = dict(db.execute("SELECT id, lane FROM outbox").fetchall())
    unmarked, first, newest = Counter(), set(), {}
    for line in story.sent.read_text().splitlines():
        outbox_id, part, recovered, lane, _ = json.loads(line)
        unmarked[outbox_id, part] += not recovered
        if outbox_id not in first and outbox_id < newest.get(lane, 0):
            yield f"reply {outbox_id} of {lane} was sent after {newest[lane]}"
        first.add(outbox_id)
        newest[lane] = max(newest.get(lane, 0), outbox_id)
    yield from (f"reply {number} was not sent" for number in outbox.keys() - first)
    yield from (f"reply {number} was sent but is not stored" for number in first - outbox.keys())
    for (number, part), times in unmarked.items():
        if times > 1:
            yield f"part {part} of reply {number} was sent {times} times without a mark"
