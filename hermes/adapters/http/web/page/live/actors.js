// The conversations in memory: a table of any length, of which only the rows in sight are built.

import { serverNow } from "../lib/api.js";
import { h, icon, keyed, set, text } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { link } from "../lib/router.js";
import { age, conversation, put, stateOf, to } from "./parts.js";

const STATES = ["running", "waiting", "idle"];
// Each column: its title, its value for sorting, and its cell.
const COLUMNS = [
  ["Conversation", (each) => each.session_key, (each) => conversation(each.session_key)],
  ["State", (each) => STATES.indexOf(stateOf(each)), (each) => h("span",
    { class: "state", "data-state": stateOf(each) }, stateOf(each))],
  ["Mailbox", (each) => -each.mailbox, (each) => format.count(each.mailbox)],
  ["Turn", (each) => each.turn_started ?? Infinity, (each) => (each.turn_id
    ? to(age(each.turn_started), "turns", each.session_key, each.turn_id) : "–")],
  ["Agent", (each) => `${each.agent ? 0 : 1}${each.last_build ?? "~"}`, (each) => to(
    [each.agent ? "cached" : "none", each.last_build].filter(Boolean).join(" · "), "live", "cache", each.session_key)],
  ["Transcript", (each) => -each.transcript_bytes, (each) => format.bytes(each.transcript_bytes)],
  ["Used", (each) => -each.used_at, (each) => format.relative(each.used_at, serverNow())],
  ["Lineage", null, (each) => h("a", { href: link("live", "lineage", each.session_key), title: "Lineage",
    "aria-label": `Lineage of ${each.session_key}` }, icon("branch"))],
];
const kept = { column: 6, reverse: false, words: "" }; // also after the tab was left
const narrow = matchMedia("(max-width: 760px)");

export function open(root, state, only) {
  const said = h("p", { class: "muted small-text", role: "status" });
  const words = h("input", { class: "field", type: "search", placeholder: "Filter by key", value: kept.words,
    "aria-label": "Filter by key", oninput() { kept.words = words.value; box.scrollTop = 0; render(); } });
  const choice = h("select", { class: "field", "aria-label": "State", onchange() {
    location.hash = link("live", "actors", choice.value);
  } }, ["", ...STATES].map((each) => h("option", { value: each, selected: each === only }, each || "All states")));
  const heads = COLUMNS.map(([title, value], at) => h("div", { role: "columnheader" }, value ? h("button",
    { type: "button", onclick: () => sort(at) }, title) : h("span", { class: "visually-hidden" }, title)));
  const rows = h("div", { role: "rowgroup", class: "actors" });
  const box = h("div", { class: "actor-box", role: "table", "aria-label": "Conversations in memory", tabindex: 0,
    onscroll: show }, h("div", { role: "rowgroup", class: "actor-head" }, h("div", { role: "row", class: "actor" }, heads)), rows);
  root.append(h("div", { class: "filters" }, words, choice, said), box);
  const resized = new ResizeObserver(show);
  resized.observe(box);
  let found = [];
  return { render, close: () => resized.disconnect() };

  function sort(column) {
    Object.assign(kept, { column, reverse: kept.column === column && !kept.reverse });
    render();
  }

  function render() {
    const value = COLUMNS[kept.column][1];
    const order = kept.reverse ? -1 : 1;
    found = [...state.actors.values()].filter((each) => (!only || stateOf(each) === only)
      && each.session_key.toLowerCase().includes(kept.words.toLowerCase()))
      .map((each) => [value(each), each])
      .sort(([a, x], [b, y]) => order * (a < b ? -1 : a > b ? 1 : x.session_key < y.session_key ? -1 : 1));
    heads.forEach((each, at) => set(each, { "aria-sort": at === kept.column
      && (kept.reverse ? "descending" : "ascending") }));
    text(said, `${format.count(found.length)} of ${format.count(state.actors.size)}`);
    show();
  }

  /** Build the rows in sight, and keep the one that has the focus. */
  function show() {
    const height = narrow.matches ? 64 : 38;
    const first = box.scrollTop / height - 5;
    const last = (box.scrollTop + box.clientHeight) / height + 5;
    const focused = document.activeElement?.closest(".actor")?.dataset.key;
    const seen = found.map(([, each], at) => [each, at]).filter(([each, at]) =>
      (at > first && at < last) || each.session_key === focused);
    rows.style.height = `${found.length * height}px`;
    set(box, { "aria-rowcount": found.length + 1 });
    keyed(rows, seen, ([each]) => each.session_key, ([each]) => h("div",
      { role: "row", class: "actor", "data-key": each.session_key }, COLUMNS.map(() => h("div", { role: "cell" }))),
    (row, [each, at]) => {
      set(row, { "aria-rowindex": at + 2 });
      row.style.transform = `translateY(${at * height}px)`;
      COLUMNS.forEach(([, , cell], column) => put(row.children[column], cell(each)));
    });
  }
}
