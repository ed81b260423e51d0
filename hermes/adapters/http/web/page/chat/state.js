// What the page knows of a conversation: a snapshot, and every event since, applied in order.

import { serverNow } from "../lib/api.js";
import { GrowingView } from "../lib/dom.js";

/** The state of one conversation. `apply` takes what its stream sends. */
export class State {
  constructor() {
    this.known = false;
    this.session_key = null;
    this.session_id = null;
    this.title = null;
    this.archived = false;
    this.settings = {};
    this.rows = [];
    this.earlier = false;
    this.waiting = new Map();
    this.turn = null;
    this.approvals = [];
    this.notes = []; // replies that the transcript does not have, such as those of commands
    this.accepted = new Set(); // event ids of messages that the server has
    this.decisions = new Set(); // messages that approve or deny a tool call
    this.finished = new Map(); // tool calls that ended while this page was open, with their durations
    this.version = 0; // of the rows and notes
  }

  /** Apply an event: its kind and data. */
  apply(kind, data) {
    if (kind === "reset") {
      this.reset(data);
      return;
    }
    this.ending = this.turn;
    if (kind === "progress") this.say(data);
    else if (data.event) this.receive(data.event, data.turn_id);
    this.change(data.changes ?? {});
  }

  reset(data) {
    const older = data.session_id === this.session_id && data.history.earlier
      ? this.rows.filter((row) => row.id < (data.history.messages[0]?.id ?? 0)) : [];
    const { history, waiting, ...rest } = data;
    Object.assign(this, rest, { known: true });
    this.rows = [...older, ...history.messages];
    this.earlier = older.length ? this.earlier : history.earlier;
    this.waiting = byId(waiting);
    if (this.turn) this.turn = begun(this.turn);
    this.version += 1;
  }

  receive(event, turnId) {
    const { turn } = this;
    const ours = turn && turn.turn_id === turnId;
    switch (event.type) {
      case "message_accepted":
        this.accepted.add(event.event_id);
        if (/^\/(approve|deny) /.test(event.text)) this.decisions.add(event.inbox_id);
        if (!this.waiting.has(event.inbox_id)) {
          this.waiting.set(event.inbox_id, { parts: [], ...event });
        }
        break;
      case "turn_started":
        this.turn = begun({ turn_id: turnId, inbox_ids: event.inbox_ids ?? [], parts: [], tools: [],
          attempt: event.attempt, started_at: serverNow() });
        break;
      case "turn_ended":
        this.note(event);
        for (const id of event.inbox_ids ?? []) this.waiting.delete(id);
        if (ours) this.turn = null;
        break;
      case "notice":
        this.addNote("notice", event.text);
        break;
      default:
        if (ours) progress(turn, event, this.finished);
    }
  }

  change(changes) {
    const { history, waiting, turn, ...rest } = changes;
    Object.assign(this, rest);
    if (waiting) this.waiting = byId(waiting);
    if (turn !== undefined) this.turn = turn && begun(turn);
    if (!history) return;
    if (history.replace) {
      this.rows = [];
      this.earlier = history.earlier;
    }
    const last = this.rows.at(-1)?.id ?? 0;
    const added = history.messages.filter((row) => row.id > last);
    for (const row of added) {
      if (row.part !== undefined) row.shown = this.ending?.parts.find(isText(row.part))?.view.element;
    }
    this.rows = [...this.rows, ...added];
    this.version += 1;
  }

  /** Take what the running turn has said. */
  say({ turn_id, restart, parts = [] }) {
    const { turn } = this;
    if (turn?.turn_id !== turn_id) return;
    turn.retrying = null;
    if (restart) turn.parts = turn.parts.filter((part) => part.type !== "text");
    for (const update of parts) {
      const { type, number } = update;
      let part = turn.parts.find((each) => each.number === number && each.type === type);
      if (!part) {
        part = { type, number, text: "", view: type === "text" ? new GrowingView() : null };
        turn.parts.push(part);
      }
      if (type === "text") part.view.update(update);
      else part.text += update.text;
    }
  }

  /** Add an earlier page of messages. */
  prepend(rows, limit) {
    const first = this.rows[0]?.id ?? Infinity;
    this.rows = [...rows.filter((row) => row.id < first), ...this.rows];
    this.earlier = rows.length >= limit;
    this.version += 1;
  }

  note({ reply, dropped_by, inbox_ids = [] }) {
    const decides = inbox_ids.some((id) => this.decisions.has(id));
    if (!reply || dropped_by || (decides && reply.status === "command")) return;
    if (reply.status === "interrupted") this.addNote("stopped", "You stopped this answer.");
    else if (reply.status === "command") this.addNote("reply", reply.text);
    else if (reply.status === "failed" || reply.status === "refused") {
      this.addNote("error", reply.text || reply.error || "The turn failed.");
    }
  }

  addNote(kind, text) {
    if (!text) return;
    this.notes = [...this.notes.slice(-49), { id: `n${this.version}.${this.notes.length}`, kind, text,
      pending: true, after: 0 }];
    this.version += 1;
  }

  /** Place new notes after the rows that came with them. */
  placeNotes() {
    for (const note of this.notes) {
      if (note.pending) Object.assign(note, { pending: false, after: this.rows.at(-1)?.id ?? 0 });
    }
  }

  /** The messages that the running turn answers, and those that wait for the next one. */
  open() {
    const taken = new Set(this.turn?.inbox_ids ?? []);
    const answering = [];
    const queued = [];
    for (const message of this.waiting.values()) {
      if (message.decided_call) continue;
      (taken.has(message.inbox_id) || !this.turn ? answering : queued).push(message);
    }
    return { answering, queued };
  }
}

const byId = (messages) => new Map(messages.map((each) => [each.inbox_id, each]));

const isText = (number) => (part) => part.type === "text" && part.number === number;

const begun = (turn) => ({ retrying: null, ...turn, tools: turn.tools.map((each) => ({ ...each })),
  parts: (turn.parts ?? []).map((part) => ({ ...part,
    view: part.type === "text" ? new GrowingView(part) : null })) });

function progress(turn, event, finished) {
  const at = performance.now() / 1000;
  turn.retrying = null;
  if (event.type === "retrying") turn.retrying = event.text;
  else if (event.type === "steered") turn.inbox_ids = [...turn.inbox_ids, ...event.inbox_ids ?? []];
  else if (event.type === "tool_started") {
    turn.tools.push({ call: event.call, at });
    turn.parts.push({ type: "tool", call_id: event.call.id });
  } else if (event.type === "tool_finished") {
    const tool = turn.tools.find((each) => each.call.id === event.call_id);
    if (tool) {
      Object.assign(tool, { finished: true, failed: event.failed, content: event.content,
        parts: event.parts, seconds: tool.at && at - tool.at });
      finished.set(event.call_id, tool);
    }
  }
}
