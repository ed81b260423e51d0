// Where a message is written, and what waits above it.

import { conversation, del, get, patch, post, serverNow, stored } from "../lib/api.js";
import {
  announce, attempt, button, countdown, fail, h, icon, keyed, replace, set, text,
} from "../lib/dom.js";
import { Attachments, pretty } from "./messages.js";

const DRAFT = "hermes.draft.";
let choices = null; // commands and agents: one request for all conversations

async function loadChoices() {
  choices ??= get("/api/choices").catch((error) => {
    choices = null;
    throw error;
  });
  return choices;
}

/** The form at the bottom. `view` has `name`, `state`, `send(message)` and `stop()`. */
export class Composer {
  constructor(view) {
    this.view = view;
    this.editing = null;
    this.commands = [];
    this.chosen = 0;
    this.saved = DRAFT + stored(view.name);
    this.files = new Attachments(view.name, (why) => {
      this.update();
      if (why === "removed") this.focus();
    });
    this.input = h("textarea", {
      class: "input", rows: 1, placeholder: "Message Hermes", "aria-label": "Message", enterkeyhint: "send",
      role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": "commands",
      value: localStorage.getItem(this.saved) ?? "",
      oninput: () => this.typed(), onkeydown: (event) => this.keydown(event),
      onpaste: (event) => this.pasted(event), onblur: () => this.complete([]),
    });
    this.picker = h("input", { type: "file", multiple: true, hidden: true, tabIndex: -1,
      "aria-label": "Files", onchange: () => this.picked() });
    this.completions = h("ul", { id: "commands", class: "completions", role: "listbox",
      "aria-label": "Commands", hidden: true });
    this.agent = h("select", { class: "agent", "aria-label": "Agent", hidden: true,
      onchange: () => this.chooseAgent() });
    this.mode = h("div", { class: "mode", hidden: true });
    this.stopper = button("Stop", { class: "stop", hidden: true, onclick: () => view.stop(),
      title: "Stop the answer (Esc)" }, "stop", true);
    this.steerer = button("Steer", { class: "quiet", hidden: true, onclick: () => this.submit("steer"),
      title: "Send it into the running answer (Ctrl+Enter)" }, "steer", true);
    this.sender = button("Send", { class: "primary", type: "submit" }, "arrowUp");
    this.element = h("form", {
      class: "composer", "aria-label": "New message",
      onsubmit: (event) => { event.preventDefault(); this.submit(); },
    }, this.mode, this.completions, this.files.element, this.input,
    h("div", { class: "composer-bar" },
      button("Attach files", { class: "quiet", onclick: () => this.picker.click() }, "attach"),
      this.picker, this.agent, h("span", { class: "grow" }), this.stopper, this.steerer, this.sender));
    this.load();
    this.resize();
    this.update();
  }

  async load() {
    try {
      const { commands, agents } = await loadChoices();
      this.commands = commands;
      if (agents.length > 1) {
        replace(this.agent, h("option", { value: "" }, "Default agent"),
          agents.map(({ name, model }) => h("option", { value: name, title: model }, name)));
        this.agent.hidden = false;
      }
      this.update();
    } catch {
      // The chat works without them; they are asked for again with the next conversation.
    }
  }

  focus() {
    this.input.focus();
  }

  /** Put a text and files into the form, for example to edit a message. */
  fill(value, parts = [], editing = null) {
    this.editing = editing;
    this.input.value = value;
    this.files.clear();
    this.files.restore(parts);
    this.typed();
    this.focus();
  }

  update() {
    const { state } = this.view;
    const running = Boolean(state.turn);
    const filled = Boolean(this.input.value.trim() || this.files.parts.length);
    this.stopper.hidden = !running;
    this.steerer.hidden = !running || !filled || Boolean(this.editing);
    const label = this.editing ? "Send the new version" : running ? "Queue" : "Send";
    set(this.sender, { "aria-label": label, title: `${label} (Enter)`,
      disabled: !filled || this.files.uploading });
    this.agent.value = state.settings?.agent ?? "";
    this.mode.hidden = !this.editing;
    if (this.editing) {
      replace(this.mode, h("span", null, "You edit a message. The conversation goes on in a branch."),
        button("Cancel", { class: "quiet small", onclick: () => this.fill("") }));
    }
  }

  typed() {
    this.resize();
    if (!this.editing) {
      if (this.input.value) localStorage.setItem(this.saved, this.input.value);
      else localStorage.removeItem(this.saved);
    }
    const word = /^\/(\w*)$/.exec(this.input.value)?.[1];
    this.complete(word === undefined ? [] : this.commands.filter(({ name }) => name.startsWith(word)));
    this.update();
  }

  resize() {
    if (CSS.supports("field-sizing", "content")) return;
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight}px`;
  }

  submit(verb = "messages") {
    const value = this.input.value.trim();
    const { parts } = this.files;
    if (this.files.uploading || (!value && !parts.length)) return;
    const { editing } = this;
    if (editing) this.view.send({ text: value, parts, verb: "edit", body: { message: editing } });
    else if (verb === "steer") this.view.send({ text: value, parts, verb });
    else this.view.send({ text: value, parts, body: { when_busy: "queue" } });
    this.editing = null;
    this.input.value = "";
    this.files.clear();
    this.typed();
    this.focus();
  }

  keydown(event) {
    if (event.isComposing) return;
    if (!this.completions.hidden && this.choose(event)) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && this.view.state.turn) {
      event.preventDefault();
      this.submit("steer");
    } else if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.submit();
    } else if (event.key === "Escape" && this.editing) {
      event.stopPropagation();
      this.fill("");
    } else if (event.key === "ArrowUp" && !this.input.value) {
      event.preventDefault();
      this.view.messages.step(0);
    }
  }

  // Commands

  complete(found) {
    this.chosen = 0;
    this.offered = found;
    this.completions.hidden = !found.length;
    set(this.input, { "aria-expanded": String(found.length > 0) });
    keyed(this.completions, found, ({ name }) => name, ({ name, help }) => h("li", {
      role: "option", id: `command-${name}`,
      onmousedown: (event) => { event.preventDefault(); this.take(name); },
    }, h("code", null, `/${name}`), h("span", { class: "muted" }, help)));
    this.mark();
  }

  mark() {
    [...this.completions.children].forEach((each, n) => {
      each.setAttribute("aria-selected", String(n === this.chosen));
      if (n === this.chosen) each.scrollIntoView({ block: "nearest" });
    });
    set(this.input, { "aria-activedescendant": this.completions.children[this.chosen]?.id });
  }

  /** Handle a key while commands are offered; whether it was one for them. */
  choose(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      this.chosen = (this.chosen + step + this.offered.length) % this.offered.length;
      this.mark();
    } else if (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey
      && this.input.value !== `/${this.offered[this.chosen].name}`)) this.take(this.offered[this.chosen].name);
    else if (event.key === "Escape") this.complete([]);
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  }

  take(name) {
    this.input.value = `/${name} `;
    this.typed();
    this.focus();
  }

  // Files and the agent

  picked() {
    this.attach([...this.picker.files]);
    this.picker.value = "";
  }

  pasted(event) {
    const found = [...event.clipboardData?.files ?? []];
    if (!found.length) return;
    event.preventDefault();
    this.attach(found);
  }

  /** Attach files. */
  attach(found) {
    if (found.length) this.files.add(found);
    this.focus();
  }

  async chooseAgent() {
    try {
      await patch(conversation(this.view.name), { agent: this.agent.value || null });
    } catch (error) {
      this.update();
      fail(error);
    }
    this.focus();
  }
}

// What waits above the composer: tool calls to approve, and messages for the next turn.

/** Tool calls that wait for a decision. */
export class Approvals {
  constructor(view) {
    this.view = view;
    this.seen = new Set();
    this.element = h("div", { class: "approvals", role: "region", "aria-label": "Approvals", hidden: true });
    this.clock = setInterval(() => this.tick(), 1000);
  }

  close() {
    clearInterval(this.clock);
  }

  update() {
    const { approvals } = this.view.state;
    const waiting = approvals.filter((each) => each.state === "pending");
    this.element.hidden = !waiting.length;
    keyed(this.element, waiting, (each) => each.approval_id, (each) => this.create(each));
    for (const each of waiting) {
      if (!this.seen.has(each.approval_id)) announce(`Hermes asks to run ${each.tool}.`);
      this.seen.add(each.approval_id);
    }
    this.tick();
  }

  create(approval) {
    const { tool } = approval;
    const act = (label, body, extra) => button(label, { class: extra,
      onclick: () => this.decide(approval, body, card) });
    const card = h("section", { class: "approval", "aria-label": `Approve ${tool}` },
      h("header", null, icon("key"), h("h3", null, "Run ", h("code", null, tool), "?"),
        h("span", { class: "badge warn numbers expiry", role: "timer" })),
      h("pre", { tabIndex: 0, "aria-label": "Arguments" }, pretty(approval.arguments)),
      h("div", { class: "actions" }, act("Approve", { approve: true }, "primary"),
        act("Always allow here", { approve: true, always: true }, ""),
        act("Deny", { approve: false }, "danger")));
    card.expires = approval.expires_at;
    return card;
  }

  async decide(approval, body, card) {
    const buttons = card.querySelectorAll("button");
    for (const each of buttons) each.disabled = true;
    try {
      await post(conversation(approval.asked_of, `/approvals/${approval.approval_id}`), body);
      this.view.composer.focus();
    } catch (error) {
      for (const each of buttons) each.disabled = false;
      fail(error);
    }
  }

  tick() {
    for (const card of this.element.children) {
      const left = card.expires - serverNow();
      text(card.querySelector(".expiry"), left > 0 ? `expires in ${countdown(left)}` : "expired");
      if (left <= 0) for (const each of card.querySelectorAll("button")) each.disabled = true;
    }
  }
}

/** Messages that wait until the running turn ends. */
export class Queue {
  constructor(view) {
    this.view = view;
    this.list = h("ol");
    this.title = h("h3", { class: "muted" });
    this.element = h("section", { class: "queue", "aria-label": "Queue", hidden: true }, this.title, this.list);
  }

  update() {
    const { state, outbox } = this.view;
    const { queued } = state.open();
    const sending = state.turn ? outbox.messages.filter((each) => !each.error && !state.waiting.has(each.id)
      && !state.turn.inbox_ids.includes(each.id) && each.verb !== "retry") : [];
    const shown = [...queued.map((each) => ({ ...each, key: each.event_id || each.inbox_id })),
      ...sending.map((each) => ({ ...each, key: `key:${each.key}`, late: each.late ?? "Sending …" }))];
    this.element.hidden = !shown.length;
    text(this.title, shown.length === 1 ? "Waits for the next turn" : `${shown.length} wait for the next turn`);
    keyed(this.list, shown, (each) => each.key, () => this.create(), (node, each) => this.show(node, each));
  }

  create() {
    const node = h("li", null, icon("queue"), h("span", { class: "queued-text" }),
      h("span", { class: "muted state" }),
      button("Edit queued message", { class: "quiet small", onclick: () => this.edit(node.message) }, "edit"),
      button("Withdraw message", { class: "quiet small", onclick: () => this.withdraw(node.message) }, "close"));
    return node;
  }

  show(node, message) {
    node.message = message;
    text(node.querySelector(".queued-text"), message.text || "(files)");
    text(node.querySelector(".state"), message.late ?? "");
    for (const each of node.querySelectorAll("button")) each.hidden = !message.inbox_id;
  }

  async withdraw(message) {
    return attempt(async () => {
      const { withdrawn } = await del(conversation(this.view.name, `/messages/${message.inbox_id}`));
      if (!withdrawn) throw new Error("The turn of this message has begun already.");
      this.view.composer.focus();
      return true;
    });
  }

  async edit(message) {
    if (await this.withdraw(message)) this.view.composer.fill(message.text, message.parts ?? []);
  }
}
