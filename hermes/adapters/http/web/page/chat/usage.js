// What the turns of a conversation have used, and what they cost.

import { conversation, get } from "../lib/api.js";
import { count, dateTime, h, link, money, openDialog, shortCount, when } from "../lib/dom.js";

/** The usage of one conversation; `onChange` is called when it was read again. */
export class UsageOf {
  constructor(name, onChange) {
    this.name = name;
    this.onChange = onChange;
    this.turns = new Map();
    this.found = null;
    this.timer = null;
  }

  /** Read it again, soon: several calls in a row are one. */
  refresh() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.read(), 200);
  }

  async read() {
    try {
      this.found = await get(conversation(this.name, "/usage"), { limit: 500 });
    } catch {
      return; // what is shown stays
    }
    this.turns = new Map(this.found.turns.filter((turn) => turn.turn_id)
      .map((turn) => [turn.last_at, turn]));
    this.onChange();
  }

  close() {
    clearTimeout(this.timer);
  }

  /** The usage of the turn that stored its messages at this time. */
  at(timestamp) {
    return this.turns.get(timestamp);
  }

  get cost() {
    return this.found?.cost ?? 0;
  }

  /** Show all turns in a dialog. */
  show(key) {
    const turns = this.found?.turns ?? [];
    const sum = (name) => turns.reduce((total, turn) => total + turn[name], 0);
    openDialog("Usage of this conversation", turns.length ? [
      h("dl", { class: "figures" }, figure("Cost", money(this.cost)),
        figure("Model calls", count(sum("calls"))), figure("Input", shortCount(sum("input_tokens"))),
        figure("Output", shortCount(sum("output_tokens"))), figure("From cache", share(turns))),
      h("div", { class: "scroll-x", tabIndex: 0, role: "region", "aria-label": "Usage of each turn" },
        h("table", { class: "table" },
          h("thead", null, h("tr", null, ["When", "Model", "Input", "Cached", "Output", "Cost"]
            .map((name, n) => h("th", { scope: "col", class: n > 1 ? "number" : "" }, name)))),
          h("tbody", null, turns.map((turn) => row(turn, key))))),
    ] : h("p", { class: "muted" }, "Nothing was used yet."), { wide: true });
  }
}

const figure = (name, value) => h("div", null, h("dt", null, name), h("dd", { class: "numbers" }, value));

const share = (turns) => {
  const input = turns.reduce((total, turn) => total + turn.input_tokens, 0);
  const cached = turns.reduce((total, turn) => total + turn.cache_read_tokens, 0);
  return input ? `${Math.round((100 * cached) / input)}%` : "–";
};

function row(turn, key) {
  const at = h("time", { title: dateTime(turn.last_at) }, when(turn.last_at));
  const numbers = [shortCount(turn.input_tokens), shortCount(turn.cache_read_tokens),
    shortCount(turn.output_tokens), cost(turn)];
  return h("tr", null,
    h("td", null, turn.turn_id ? h("a", { href: link("turns", key, turn.turn_id) }, at)
      : [at, ` ${turn.purposes.join(", ")}`]),
    h("td", null, turn.models.join(", ")),
    numbers.map((value) => h("td", { class: "number" }, value)));
}

const cost = (turn) => (turn.unpriced && !turn.cost ? "unknown" : money(turn.cost));

/** "4.2K in · 655 out · $0.012" */
export function summary(turn) {
  return [`${shortCount(turn.input_tokens)} in`, `${shortCount(turn.output_tokens)} out`,
    cost(turn)].join(" · ");
}
