// What waits above the composer: tool calls to approve, and messages for the next turn.

import { conversation, del, post, serverNow } from "../lib/api.js";
import { announce, button, countdown, fail, h, icon, keyed, text } from "../lib/dom.js";
import { pretty } from "./tools.js";

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
    try {
      const path = conversation(this.view.name, `/messages/${message.inbox_id}`);
      const { withdrawn } = await del(path);
      if (!withdrawn) throw new Error("The turn of this message has begun already.");
      this.view.composer.focus();
      return true;
    } catch (error) {
      fail(error);
      return false;
    }
  }

  async edit(message) {
    if (await this.withdraw(message)) this.view.composer.fill(message.text, message.parts ?? []);
  }
}
