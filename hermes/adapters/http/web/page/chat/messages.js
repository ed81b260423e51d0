// The messages of a conversation. Only a window of them is in the document, so that thousands scroll
// as smoothly as ten.

import {
  announce, button, dateTime, day, fail, h, icon, keyed, replace, text, time, toast,
} from "../lib/dom.js";
import { files } from "./attachments.js";
import { markdown } from "./texts.js";
import { createTool, updateTool } from "./tools.js";
import { summary } from "./usage.js";

const WINDOW = 120;
const STEP = 40;
const NEAR = 700; // pixels from an edge at which more is loaded
const DECISION = /^\[The user has (approved|refused) one call of (.*?), with exactly these arguments: /s;
const END = 60; // pixels from the end within which the view follows

/** Copy a text to the clipboard, and say so. */
export async function copyText(value) {
  try {
    await navigator.clipboard.writeText(value);
    toast("Copied.");
  } catch {
    fail(new Error("The browser does not allow copying here. Select the text instead."));
  }
}

/** The scrolling list. `view` has `state`, `usage`, `name`, `actions` and `loadEarlier()`. */
export class Messages {
  constructor(view) {
    this.view = view;
    this.items = [];
    this.start = 0;
    this.end = 0;
    this.following = true;
    this.version = null;
    this.list = h("div", { class: "messages" });
    this.live = h("div", { class: "live" });
    this.top = h("div", { class: "top-note" });
    this.inner = h("div", { class: "column" }, this.top, this.list, this.live);
    this.scroller = h("div", { class: "scroller", role: "log", "aria-label": "Messages",
      "aria-live": "off", tabIndex: 0, onscroll: () => this.scrolled() }, this.inner);
    this.jump = button("Jump to latest", { class: "jump", hidden: true, onclick: () => this.toEnd() },
      "arrowDown", true);
    this.resized = new ResizeObserver(() => this.following && this.stick());
    this.resized.observe(this.inner);
    this.resized.observe(this.scroller);
  }

  close() {
    this.resized.disconnect();
  }

  /** Show the rows of the state, if they are others than before. */
  update() {
    const { state, usage } = this.view;
    const version = `${state.version} ${usage.turns.size}`;
    if (version === this.version) return;
    this.version = version;
    const first = this.items[this.start]?.key;
    const last = this.items[this.end - 1]?.key;
    this.items = toItems(state);
    if (this.following || !this.end) this.setEnd(this.items.length);
    else {
      const at = this.items.findIndex((item) => item.key === first);
      this.start = Math.max(0, at);
      const to = this.items.findIndex((item) => item.key === last);
      this.end = to < 0 ? Math.min(this.items.length, this.start + WINDOW) : to + 1;
    }
    this.render();
  }

  setEnd(end) {
    this.end = end;
    this.start = Math.max(0, end - Math.round(WINDOW * 0.7));
  }

  render() {
    const { state } = this.view;
    const shown = this.items.slice(this.start, this.end);
    keyed(this.list, shown, (item) => item.key, (item) => this.create(item),
      (node, item) => this.refresh(node, item));
    const more = this.start > 0 || state.earlier;
    text(this.top, more ? "Loading earlier messages …" : shown.length ? "Beginning of the conversation" : "");
    this.scroller.setAttribute("aria-busy", String(!state.known));
  }

  // Scrolling

  scrolled() {
    const { scroller } = this;
    const left = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
    this.following = left < END && this.end === this.items.length;
    this.jump.hidden = this.following;
    if (scroller.scrollTop < NEAR) this.up();
    else if (left < NEAR && this.end < this.items.length) this.down();
  }

  async up() {
    const { state } = this.view;
    if (this.start > 0) {
      this.anchored(() => {
        this.start = Math.max(0, this.start - STEP);
        this.end = Math.min(this.end, this.start + WINDOW);
        this.render();
      });
    } else if (state.earlier && !this.loading) {
      this.loading = true;
      try {
        await this.view.loadEarlier();
        this.anchored(() => this.update());
      } catch (error) {
        fail(error);
      } finally {
        this.loading = false;
      }
      if (this.scroller.isConnected) requestAnimationFrame(() => this.scrolled());
    }
  }

  down() {
    this.anchored(() => {
      this.end = Math.min(this.items.length, this.end + STEP);
      this.start = Math.max(0, this.end - WINDOW);
      this.render();
    });
  }

  /** Change the list, and keep what is seen where it is. */
  anchored(change) {
    const { scroller } = this;
    const top = scroller.getBoundingClientRect().top;
    const anchor = [...this.list.children].find((each) => each.getBoundingClientRect().bottom > top);
    const before = anchor?.getBoundingClientRect().top;
    change();
    if (anchor?.isConnected) scroller.scrollTop += anchor.getBoundingClientRect().top - before;
  }

  /** Keep the end in view, while the reader is there. */
  stick() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  /** Go to the latest message, and follow. */
  toEnd() {
    this.following = true;
    this.jump.hidden = true;
    this.setEnd(this.items.length);
    this.render();
    this.stick();
  }

  /** Move the focus to the next or previous message. */
  step(by) {
    const all = [...this.inner.querySelectorAll("article:not([hidden])")];
    const at = all.indexOf(document.activeElement?.closest("article"));
    const next = all[at < 0 ? all.length - 1 : Math.min(all.length - 1, Math.max(0, at + by))];
    next?.focus({ preventScroll: true });
    next?.scrollIntoView({ block: "nearest" });
  }

  // Items

  create(item) {
    if (item.note) return noteNode(item.note);
    const { row } = item;
    const who = row.role === "user" ? "You" : row.role === "assistant" ? "Hermes" : "System";
    const node = h("article", { class: `message ${row.role}`, tabIndex: -1, "data-id": row.id,
      "aria-label": `${who}, ${time(row.timestamp)}` });
    node.append(...[item.day && h("div", { class: "day" }, h("span", null, item.day))].filter(Boolean));
    if (row.role === "assistant") this.fillAnswer(node, item);
    else this.fillInput(node, row);
    return node;
  }

  fillInput(node, row) {
    const { name } = this.view;
    node.append(...[files(row.parts ?? [], name),
      row.text && h("div", { class: "bubble" }, markdown(row))].filter(Boolean),
    this.bar(row));
  }

  fillAnswer(node, item) {
    const { row, tools } = item;
    const parts = [reasoning(row.reasoning), row.text && (row.shown ?? markdown(row)),
      files(row.parts ?? [], this.view.name)];
    node.append(...parts.filter(Boolean));
    for (const tool of tools) {
      const card = createTool();
      updateTool(card, tool, this.view.name);
      node.append(card);
    }
    if (item.last) node.append(this.bar(row));
  }

  /** Bring an item up to date: what depends on others. */
  refresh(node, item) {
    if (item.note) return;
    node.classList.toggle("latest", item.latest);
    node.classList.toggle("continued", Boolean(item.continued));
    const meta = node.querySelector(".meta");
    const turn = item.last && this.view.usage.at(item.row.timestamp);
    if (meta && turn) {
      text(meta, summary(turn));
      meta.dataset.turn = turn.turn_id;
      meta.hidden = false;
    }
  }

  bar(row) {
    const { actions } = this.view;
    const own = row.role === "user";
    const act = (label, sign, run, extra = "") => button(label, { class: `quiet small ${extra}`,
      onclick: (event) => run(row, event.currentTarget) }, sign);
    return h("div", { class: "bar" },
      h("time", { class: "muted numbers", title: dateTime(row.timestamp) }, time(row.timestamp)),
      act("Copy message", "copy", () => copyText(row.text ?? "")),
      own && act("Edit message", "edit", actions.edit),
      act("Branch from here", "branch", actions.branch),
      act("Answer again", "retry", actions.retry, "only-latest"),
      act("Take back", "undo", actions.undo, "only-latest"),
      !own && h("button", { type: "button", class: "meta muted numbers", hidden: true,
        title: "Show how this turn was made",
        onclick: (event) => actions.turn(event.currentTarget.dataset.turn) }));
  }

  /** Say what has arrived, for screen readers. */
  announceLast() {
    const last = this.items.findLast((item) => item.row?.role === "assistant");
    if (last) announce(`Hermes: ${(last.row.text ?? "").slice(0, 300)}`);
  }
}

/** Return the reasoning, folded. */
export function reasoning(value) {
  return value ? h("details", { class: "reasoning" },
    h("summary", null, icon("spark"), "Reasoning", icon("chevron")),
    h("div", { class: "plain" }, value)) : null;
}

function noteNode(note) {
  const kind = { error: "error", stopped: "" }[note.kind] ?? "";
  return h("div", { class: `note ${kind} ${note.kind}`, role: note.kind === "error" ? "alert" : "note" },
    icon({ error: "warning", stopped: "stop", reply: "chevron", decision: "key" }[note.kind] ?? "spark"),
    h("div", { class: "plain" }, note.text));
}

/** Return what is shown: one item per message, with the results of its tools, and notes. */
function toItems(state) {
  state.placeNotes();
  const results = new Map();
  for (const row of state.rows) if (row.role === "tool") results.set(row.tool_call_id, row);
  const items = [];
  const notes = [...state.notes];
  let lastDay = null;
  const addNotes = (upto) => {
    while (notes.length && notes[0].after < upto) {
      const note = notes.shift();
      items.push({ key: note.id, note });
    }
  };
  for (const row of state.rows) {
    if (row.role === "tool") continue;
    addNotes(row.id);
    const [, decided, tool] = (row.role === "user" && DECISION.exec(row.text ?? "")) || [];
    if (decided) {
      items.push({ key: row.id, note: { kind: "decision", text: `You ${decided} ${tool}.` } });
      continue;
    }
    const tools = (row.tool_calls ?? []).map((call) => toTool(call, results.get(call.id), state.finished));
    if (!row.text && !tools.length && !row.parts?.length && !row.reasoning) continue;
    const today = day(row.timestamp);
    const before = items.at(-1);
    const joined = row.role === "assistant" && before?.row?.role === "assistant" && !before.note;
    if (joined) before.last = false;
    items.push({ key: row.id, row, tools, last: true, continued: joined,
      day: today === lastDay ? null : today });
    lastDay = today;
  }
  addNotes(Infinity);
  const latest = items.findLast((item) => item.row);
  if (latest) latest.latest = true;
  return items;
}

function toTool(call, row, finished) {
  const seen = finished.get(call.id);
  const content = row?.text ?? "";
  return { call, finished: Boolean(row), content, parts: row?.parts ?? [], seconds: seen?.seconds,
    failed: seen ? seen.failed : /^(error|failed)\b/i.test(content) };
}
