// The running turn: what it answers, its reasoning, its tools, and the answer while it grows.

import { duration, h, keyed, text } from "../lib/dom.js";
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
    this.turn = null;
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
      if (this.turn) this.answer.replaceChildren();
      this.turn = null;
      return;
    }
    if (this.turn !== turn) this.begin(turn);
    const tools = new Map(turn.tools.map((tool) => [tool.call.id, tool]));
    keyed(this.parts.said, turn.parts, (part) => part.call_id ?? `${part.type}${part.number}`, create,
      (node, part) => {
        if (part.type === "reasoning") text(node.querySelector(".plain"), part.text);
        else if (part.type === "tool") updateTool(node, tools.get(part.call_id), this.view.name);
      });
    this.tick();
  }

  begin(turn) {
    this.turn = turn;
    this.parts = {
      said: h("div", { class: "said" }),
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
    const last = turn.parts.at(-1);
    const what = turn.retrying ?? (tool ? `Running ${tool.call.name}`
      : last?.type === "text" ? "Writing" : "Thinking");
    text(this.parts.state.querySelector(".label"), `${what}${seconds > 2 ? ` · ${duration(seconds)}` : ""}`);
  }
}

function create(part) {
  if (part.type === "text") return part.view.element;
  return part.type === "tool" ? createTool() : reasoning(" ");
}

function input(message, name) {
  return h("article", { class: "message user", tabIndex: -1, "aria-label": "You, just now" },
    files(message.parts ?? [], name),
    message.text && h("div", { class: "bubble" }, markdown({ text: message.text })),
    h("div", { class: "bar steady" }, h("span", { class: "sending", role: "status" }),
      h("button", { type: "button", class: "button small again", hidden: true }, "Edit and send again")));
}
