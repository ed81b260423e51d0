// What the page knows of a conversation: a snapshot, and every event since, applied in order.

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
    this.version = 0; // of the rows and notes
  }

  /** Apply an event: its kind and data. */
  apply(kind, data) {
    if (kind === "reset") {
      this.reset(data);
      return;
    }
    if (data.event) this.receive(data.event, data.turn_id);
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
        if (!this.waiting.has(event.inbox_id)) {
          this.waiting.set(event.inbox_id, { accepted_at: Date.now() / 1000, parts: [], ...event });
        }
        break;
      case "turn_started":
        this.turn = begun({ turn_id: turnId, inbox_ids: event.inbox_ids ?? [], text: "", reasoning: "",
          tools: [], attempt: event.attempt, started_at: Date.now() / 1000 });
        break;
      case "turn_ended":
        for (const id of event.inbox_ids ?? []) this.waiting.delete(id);
        if (ours) this.turn = null;
        this.note(event.reply, event.dropped_by);
        break;
      case "notice":
        this.addNote("notice", event.text);
        break;
      default:
        if (ours) progress(turn, event);
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
    this.rows = [...this.rows, ...history.messages.filter((row) => row.id > last)];
    this.version += 1;
  }

  /** Add an earlier page of messages. */
  prepend(rows, limit) {
    const first = this.rows[0]?.id ?? Infinity;
    this.rows = [...rows.filter((row) => row.id < first), ...this.rows];
    this.earlier = rows.length >= limit;
    this.version += 1;
  }

  note(reply, droppedBy) {
    if (!reply || droppedBy) return;
    if (reply.status === "interrupted") this.addNote("stopped", "You stopped this answer.");
    else if (reply.status === "command") this.addNote("command", reply.text);
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

const begun = (turn) => ({ retrying: null, ...turn, tools: turn.tools.map((each) => ({ ...each })) });

function progress(turn, event) {
  const at = performance.now() / 1000;
  turn.retrying = null;
  if (event.type === "text_delta") turn.text = event.restart ? "" : turn.text + event.text;
  else if (event.type === "reasoning_delta") turn.reasoning += event.text;
  else if (event.type === "retrying") turn.retrying = event.text;
  else if (event.type === "tool_started") turn.tools.push({ call: event.call, at });
  else if (event.type === "steered") turn.inbox_ids = [...turn.inbox_ids, ...event.inbox_ids ?? []];
  else if (event.type === "tool_finished") {
    const tool = turn.tools.find((each) => each.call.id === event.call_id);
    if (tool) {
      Object.assign(tool, { finished: true, failed: event.failed, content: event.content,
        parts: event.parts, seconds: tool.at && at - tool.at });
    }
  }
}
