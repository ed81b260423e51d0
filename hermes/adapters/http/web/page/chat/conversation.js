// One conversation: its header, messages, running turn, approvals, queue and composer.

import { conversation, get, post, serverNow, subscribe } from "../lib/api.js";
import { announce, button, fail, go, h, icon, link, money, openMenu, text } from "../lib/dom.js";
import { attempt, branchAfter, entries, rename, showBranches, undo } from "./actions.js";
import { Composer } from "./composer.js";
import { Messages } from "./messages.js";
import { Outbox } from "./outbox.js";
import { Running } from "./running.js";
import { State } from "./state.js";
import { UsageOf } from "./usage.js";
import { Approvals, Queue } from "./waiting.js";

const PAGE = 100;
const SUGGESTIONS = ["What can you do?", "Summarize a text for me", "Help me plan my week"];

/** A conversation that is shown. `list` is the sidebar; `onSent` is called with the first message. */
export class ConversationView {
  constructor(name, { list, onSent }) {
    this.name = name;
    this.list = list;
    this.onSent = onSent;
    this.state = new State();
    this.usage = new UsageOf(name, () => this.refresh());
    this.now = serverNow;
    this.outbox = new Outbox(name, () => this.refresh());
    this.actions = {
      edit: (row) => this.composer.fill(row.text ?? "", row.parts ?? [], row.id),
      branch: (row) => branchAfter(this, row),
      retry: () => this.send({ verb: "retry" }),
      undo: () => undo(this),
      turn: (id) => id && go(link("turns", this.state.session_key ?? name, id).slice(1)),
    };
    this.composer = new Composer(this);
    this.messages = new Messages(this);
    this.running = new Running(this, this.messages.live);
    this.approvals = new Approvals(this);
    this.queue = new Queue(this);
    this.element = this.layout();
    this.close = subscribe(conversation(name, "/events?rendered=true"), {
      onReset: (data) => this.receive("reset", data),
      onEvent: (kind, data) => this.receive(kind, data),
      onState: (state) => this.connected(state),
    });
    this.refresh();
  }

  layout() {
    this.heading = h("h1", { class: "name" });
    this.cost = button("Usage", { class: "quiet small numbers", title: "Usage and cost",
      onclick: () => this.usage.show(this.state.session_key ?? this.name) });
    this.empty = h("div", { class: "empty" }, icon("spark"), h("h2", null, "What shall we talk about?"),
      h("p", null, "Ask a question, paste a picture, or drop a file. / shows the commands, ? the shortcuts."),
      h("div", { class: "suggestions" }, SUGGESTIONS.map((each) => button(each, {
        onclick: () => this.composer.fill(each) }))));
    this.problem = h("div", { class: "note warn", role: "status", hidden: true }, icon("warning"), h("p"));
    const options = button("Options of this conversation", { class: "quiet", "aria-haspopup": "menu",
      onclick: (event) => openMenu(event.currentTarget, entries(this.entry(), {
        onDeleted: () => this.list.deleted(this.key()) })) }, "more");
    return h("section", { class: "pane", "aria-label": "Conversation",
      ondragover: (event) => this.drag(event), ondragleave: () => this.dropping(false),
      ondrop: (event) => this.drop(event) },
    h("header", { class: "pane-top" },
      h("button", { type: "button", class: "title-button", title: "Rename",
        onclick: () => rename(this.key(), this.state.title) }, this.heading),
      this.cost,
      button("Branches", { class: "quiet", onclick: () => showBranches(this) }, "branch"), options),
    h("div", { class: "stage" }, this.messages.scroller, this.empty, this.messages.jump),
    h("div", { class: "dock" }, this.problem, this.approvals.element, this.queue.element, this.composer.element));
  }

  end() {
    this.close();
    for (const each of [this.messages, this.running, this.approvals, this.outbox, this.usage]) each.close();
  }

  key() {
    return this.state.session_key ?? this.name;
  }

  title() {
    return this.state.title || this.list.entry(this.key())?.preview || "New conversation";
  }

  entry() {
    return { session_key: this.key(), title: this.state.title, preview: this.title(),
      archived: this.state.archived };
  }

  // The stream

  receive(kind, data) {
    const before = this.state.turn?.turn_id;
    const known = this.state.known;
    this.state.apply(kind, data);
    this.outbox.settle(this.state);
    if (kind === "reset" || kind === "turn_ended") this.usage.refresh();
    if (kind === "reset" && !known) this.list.select(this.key());
    this.ended = before && kind === "turn_ended";
    this.refresh();
  }

  connected(state) {
    const offline = state === "offline" || state === "connecting";
    if (state === "live") this.outbox.flush();
    if (state === "refused") {
      this.problem.hidden = false;
      text(this.problem.lastChild, "There is no such conversation, or it belongs to somebody else.");
    }
    this.element?.classList.toggle("offline", offline);
  }

  /** Show the state, before the next frame. */
  refresh() {
    if (this.frame || !this.element) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      if (this.element.isConnected) this.show();
    });
  }

  show() {
    const { state, outbox } = this;
    this.messages.update();
    this.running.update();
    this.approvals.update();
    this.queue.update();
    this.composer.update();
    if (this.messages.following) this.messages.stick();
    text(this.heading, this.title());
    document.title = `${this.title()} · Hermes`;
    text(this.cost.firstChild, this.usage.cost ? money(this.usage.cost) : "Usage");
    this.empty.hidden = !state.known || Boolean(state.rows.length || state.notes.length || state.turn
      || state.waiting.size || outbox.messages.length);
    if (this.ended) this.messages.announceLast();
    this.ended = false;
  }

  async loadEarlier() {
    const before = this.state.rows[0]?.id;
    const page = await get(conversation(this.name, "/history"), { before, limit: PAGE, rendered: true });
    this.state.prepend(page.messages, PAGE);
  }

  // What the person does

  send(message) {
    this.onSent();
    this.outbox.add(message);
    if (message.verb === "edit" || message.verb === "retry") announce("Sent.");
    this.messages.following = true;
    this.refresh();
  }

  /** Put a refused message back into the composer. */
  giveBack(key) {
    const found = this.outbox.discard(key);
    if (found) this.composer.fill(found.text, found.parts);
  }

  async stop() {
    if (!this.state.turn) return;
    await attempt(() => post(conversation(this.name, "/interrupt")));
    this.composer.focus();
  }

  drag(event) {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    this.dropping(true);
  }

  dropping(on) {
    this.element.classList.toggle("dropping", on);
  }

  drop(event) {
    event.preventDefault();
    this.dropping(false);
    const found = [...event.dataTransfer.files];
    if (found.length) this.composer.attach(found);
    else fail(new Error("Only files can be dropped here."));
  }
}
