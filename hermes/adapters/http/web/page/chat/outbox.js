// Messages that were sent and are not accepted yet. They are kept in the session storage with their
// Idempotency-Key, so that a lost connection or a killed server neither loses nor doubles one.

import { conversation, newKey, post, stored } from "../lib/api.js";

const PREFIX = "hermes.outbox.";
const DELAYS = [1, 2, 4, 8, 15];

/** The unaccepted messages of one conversation. `onChange` is called when they change. */
export class Outbox {
  constructor(name, onChange) {
    this.name = name;
    this.place = PREFIX + stored(name);
    this.messages = read(this.place);
    this.closed = false;
    this.onChange = onChange;
    this.timer = null;
    this.tries = 0;
    this.busy = false;
    this.flush();
  }

  /** Send a message: `text`, `parts`, and `verb` ("messages", "steer", "retry", "edit"). */
  add({ text = "", parts = [], verb = "messages", body = {} }) {
    this.messages.push({ key: newKey(), text, parts, verb, body, at: Date.now() / 1000 });
    this.save();
    this.flush();
  }

  /** Forget messages that the stream has shown as accepted. */
  settle(state) {
    const open = ({ key, id }) => !state.accepted.has(`key:${key}`) && !state.waiting.has(id);
    const left = this.messages.filter((each) => open(each) && !each.done);
    if (left.length !== this.messages.length) {
      this.messages = left;
      this.save();
    }
  }

  /** Forget a message that was refused; returns it. */
  discard(key) {
    const found = this.messages.find((each) => each.key === key);
    this.messages = this.messages.filter((each) => each !== found);
    this.save();
    return found;
  }

  /** Send what waits, in order, now: for example because the connection is back. */
  async flush() {
    clearTimeout(this.timer);
    if (this.busy || this.closed) return;
    this.busy = true;
    try {
      let next;
      while (!this.closed && (next = this.messages.find((each) => !each.id && !each.error))) {
        if (!(await this.send(next))) break;
      }
    } finally {
      this.busy = false;
    }
  }

  async send(message) {
    const { key, text, parts, verb, body } = message;
    const sent = verb === "retry" ? {} : { text, parts };
    const background = verb === "steer" ? {} : { background: true };
    try {
      const found = await post(conversation(this.name, `/${verb}`), { ...sent, ...background, ...body },
        { key });
      this.tries = 0;
      message.id = found.message_id;
      this.save();
      setTimeout(() => this.forget(message), 4000);
      return true;
    } catch (error) {
      if (error.status && error.status < 500 && error.status !== 429 && error.status !== 401
        && error.status !== 408) {
        message.error = error.message;
        this.save();
        return true;
      }
      const wait = error.retryAfter ?? DELAYS[Math.min(this.tries, DELAYS.length - 1)];
      message.late = error.status ? error.message : "Not sent yet: the server cannot be reached.";
      this.tries += 1;
      this.save();
      if (!this.closed) this.timer = setTimeout(() => this.flush(), wait * 1000);
      return false;
    }
  }

  forget(message) {
    if (!this.messages.includes(message)) return;
    message.done = true;
    this.messages = this.messages.filter((each) => each !== message);
    this.save();
  }

  save() {
    if (this.messages.length) sessionStorage.setItem(this.place, JSON.stringify(this.messages));
    else sessionStorage.removeItem(this.place);
    this.onChange();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}

function read(place) {
  try {
    return JSON.parse(sessionStorage.getItem(place) ?? "[]").filter((each) => !each.id);
  } catch {
    return [];
  }
}
