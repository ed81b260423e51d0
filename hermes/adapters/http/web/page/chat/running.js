// The running turn: what it answers, its reasoning, its tools, and the answer while it grows.

import { h, keyed, text } from "../lib/dom.js";
import { duration } from "../lib/format.js";
import { files } from "./attachments.js";
import { reasoning } from "./messages.js";
import { markdown } from "./texts.js";
import { createTool, updateTool } from "./tools.js";

/** Shows the turn of `view.state` below the messages. */
export class Running {
  constructor(view, element) {
    this.view = view;
    this.inputs = h("div", { class: "inputs" });
    this.answer = h("article", { class: "message assistant running", tabIndex: -1, hidden: true,
      "aria-label": "Hermes is answering" });
    this.turnId = null;
    element.append(this.inputs, this.answer);
    this.clock = setInterval(() => this.tick(), 1000);
  }

  close() {
    clearInterval(this.clock);
  }

  update() {
    const { state, outbox, name } = this.view;
    const sent = outbox.messages.filter((each) => each.verb === "messages" && (!state.turn || each.error)
      && !state.waiting.has(each.id));
    const shown = [...state.open().answering.filter((each) => each.text || each.parts?.length)
      .map((each) => ({ ...each, key: each.event_id || `m${each.inbox_id}` })),
    ...sent.map((each) => ({ ...each, key: `key:${each.key}` }))];
    keyed(this.inputs, shown, (each) => each.key, (each) => input(each, name),
      (node, each) => this.showInput(node, each));
    this.showTurn(state.turn);
  }

  showInput(node, message) {
    const pending = Boolean(message.late || message.error);
    node.classList.toggle("pending", pending);
    text(node.querySelector(".sending"), message.error ?? message.late ?? "");
    const act = node.querySelector(".again");
    act.hidden = !message.error;
    act.onclick = () => this.view.giveBack(message.key);
  }

  showTurn(turn) {
    this.answer.hidden = !turn;
    if (!turn) {
      if (this.turnId !== null) this.answer.replaceChildren();
      this.turnId = null;
      return;
    }
    if (this.turnId !== turn.turn_id) this.begin(turn);
    const { parts } = this;
    if (turn.reasoning && !parts.reasoning.firstChild) parts.reasoning.append(reasoning(" "));
    if (turn.reasoning) text(parts.reasoning.querySelector(".plain"), turn.reasoning);
    keyed(parts.tools, turn.tools, (tool) => tool.call.id, createTool,
      (card, tool) => updateTool(card, tool, this.view.name));
    this.showText(turn);
    this.tick();
  }

  showText(turn) {
    const { parts } = this;
    if (!turn.text) parts.text.replaceChildren();
    else if (!parts.text.firstChild) parts.text.append(h("p", { class: "plain" }));
    if (turn.text) text(parts.text.firstChild, turn.text);
  }

  begin(turn) {
    this.turnId = turn.turn_id;
    this.parts = {
      reasoning: h("div"),
      tools: h("div"),
      text: h("div", { class: "markdown growing" }),
      state: h("p", { class: "working" }, h("span", { class: "dots", "aria-hidden": "true" },
        h("i"), h("i"), h("i")), h("span", { class: "label" })),
    };
    this.answer.replaceChildren(...Object.values(this.parts));
  }

  tick() {
    const { turn } = this.view.state;
    if (!turn || !this.parts) return;
    const tool = turn.tools.find((each) => !each.finished);
    const seconds = Math.max(0, Math.round(this.view.now() - turn.started_at));
    const what = turn.retrying ?? (tool ? `Running ${tool.call.name}` : turn.text ? "Writing" : "Thinking");
    text(this.parts.state.querySelector(".label"), `${what}${seconds > 2 ? ` · ${duration(seconds)}` : ""}`);
  }
}

function input(message, name) {
  return h("article", { class: "message user", tabIndex: -1, "aria-label": "You, just now" },
    files(message.parts ?? [], name),
    message.text && h("div", { class: "bubble" }, markdown({ text: message.text })),
    h("div", { class: "bar steady" }, h("span", { class: "sending", role: "status" }),
      h("button", { type: "button", class: "button small again", hidden: true }, "Edit and send again")));
}
