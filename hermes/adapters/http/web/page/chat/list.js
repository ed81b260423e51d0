// The list of conversations: by day, with search in titles and texts. It follows its stream.

import { get, subscribe } from "../lib/api.js";
import {
  button, dateTime, h, icon, keyed, link, openMenu, period, set, showConnection, text, when,
} from "../lib/dom.js";
import { entries } from "./actions.js";

const PAGE = 50;
const PAUSE = 180; // milliseconds after the last key until a search

/** The sidebar. `onDeleted(key)` is called when a conversation was deleted here. */
export class List {
  constructor({ onNew, onDeleted, onChosen }) {
    this.onDeleted = onDeleted;
    this.found = new Map();
    this.turns = {};
    this.selected = null;
    this.known = false;
    this.next = undefined; // null: all pages were read
    this.archived = false;
    this.query = "";
    this.results = null;
    this.search = h("input", { class: "field", type: "search", placeholder: "Search", autocomplete: "off",
      "aria-label": "Search conversations", oninput: () => this.typed(),
      onkeydown: (event) => this.searchKey(event) });
    this.items = h("ul", { class: "conversations", onclick: (event) => event.target.closest("a") && onChosen() });
    this.hits = h("ul", { class: "hits", onclick: (event) => event.target.closest("a") && onChosen() });
    this.hitsTitle = h("h2", { class: "group" }, "In messages");
    this.note = h("p", { class: "list-note muted", role: "status" });
    this.shelf = button("Archive", { class: "quiet small", "aria-pressed": "false",
      onclick: () => this.showArchive(!this.archived) }, "archive", true);
    this.bones = h("div", { "aria-hidden": "true" }, [1, 2, 3].map(() => h("div", { class: "skeleton" })));
    this.scroller = h("div", { class: "list-scroll", onscroll: () => this.more() },
      this.bones, this.items, this.hitsTitle, this.hits, this.note);
    this.element = h("nav", { class: "sidebar", "aria-label": "Conversations" },
      h("div", { class: "list-top" },
        button("New conversation", { class: "primary new", onclick: onNew, title: "New conversation (n)" }, "plus", true),
        h("div", { class: "search" }, icon("search"), this.search)),
      this.scroller, h("div", { class: "list-end" }, this.shelf));
    this.close = subscribe("/api/events", {
      onReset: (data) => this.reset(data),
      onEvent: (kind, data) => this.receive(data),
      onState: (state, message) => showConnection(state, message),
    });
    this.minute = setInterval(() => this.show(), 60000);
    this.show();
  }

  end() {
    this.close();
    clearInterval(this.minute);
    showConnection("idle");
  }

  reset({ conversations, turns }) {
    if (!this.archived) {
      const oldest = conversations.at(-1)?.last_active ?? 0;
      const kept = conversations.length < PAGE ? [] : [...this.found.values()]
        .filter((each) => each.last_active < oldest);
      this.found = new Map([...conversations, ...kept].map((each) => [each.session_key, each]));
      if (this.next === undefined || conversations.length < PAGE) {
        this.next = conversations.length < PAGE ? null : cursor(conversations.at(-1));
      }
    }
    this.turns = turns;
    this.known = true;
    this.show();
  }

  receive({ session_key, conversation, turn_id }) {
    if (turn_id) this.turns[session_key] = turn_id;
    else delete this.turns[session_key];
    if (conversation && conversation.archived === this.archived) this.found.set(session_key, conversation);
    else this.found.delete(session_key);
    this.show();
  }

  /** The entry of a conversation, if it is known. */
  entry(key) {
    return this.found.get(key) ?? this.results?.find((each) => each.session_key === key);
  }

  select(key) {
    this.selected = key;
    this.show();
  }

  /** Return the address of the next or previous conversation. */
  neighbour(by) {
    const keys = this.sorted().map((each) => each.session_key);
    const at = keys.indexOf(this.selected);
    const key = keys[at < 0 ? 0 : at + by];
    return key && link("c", key).slice(1);
  }

  sorted() {
    return (this.results ?? [...this.found.values()])
      .sort((a, b) => b.last_active - a.last_active);
  }

  show() {
    const shown = [];
    let before = null;
    for (const each of this.sorted()) {
      const heading = period(each.last_active);
      if (heading !== before) shown.push({ key: `day ${heading}`, heading });
      before = heading;
      shown.push({ key: each.session_key, each });
    }
    keyed(this.items, shown, (item) => item.key, (item) => this.create(item),
      (node, item) => item.each && this.update(node, item.each));
    const empty = this.query ? "No title has these words." : this.archived ? "Nothing is archived."
      : "Your conversations will be listed here.";
    text(this.note, !this.known ? "" : shown.length || this.hits.firstChild ? "" : empty);
    this.bones.hidden = this.known;
    this.hitsTitle.hidden = !this.hits.firstChild;
  }

  create({ heading, each }) {
    if (heading) return h("li", { class: "group" }, h("h2", null, heading));
    const node = h("li", { class: "conversation" },
      h("a", null, h("span", { class: "title" }), h("span", { class: "sign" }), h("time", { class: "muted" })),
      button("Options", { class: "quiet small", "aria-haspopup": "menu",
        onclick: (event) => this.menu(event.currentTarget, node.key) }, "more"));
    node.key = each.session_key;
    return node;
  }

  update(node, each) {
    const [anchor, options] = node.children;
    const [title, sign, time] = anchor.children;
    const name = each.title || each.preview || "New conversation";
    const running = each.session_key in this.turns;
    text(title, name);
    text(time, when(each.last_active));
    set(time, { title: dateTime(each.last_active) });
    set(anchor, { href: link("c", each.session_key),
      "aria-current": each.session_key === this.selected ? "page" : null });
    set(options, { "aria-label": `Options of ${name}` });
    sign.className = running ? "sign running" : "sign";
    set(sign, { role: running ? "img" : null, "aria-label": running ? "An answer is running" : null });
  }

  menu(anchor, key) {
    const entry = this.entry(key);
    if (entry) openMenu(anchor, entries(entry, { onDeleted: () => this.deleted(key) }));
  }

  deleted(key) {
    const next = this.neighbour(1);
    this.found.delete(key);
    this.show();
    this.onDeleted(key);
    (this.items.querySelector("a") ?? this.search).focus();
    return next;
  }

  // Search, archive and further pages

  typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.find(), PAUSE);
  }

  searchKey(event) {
    if (event.key === "Escape" && this.search.value) {
      event.stopPropagation();
      this.search.value = "";
      this.find();
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      this.scroller.querySelector("a")?.focus();
    }
  }

  async find() {
    const query = this.query = this.search.value.trim();
    this.stop?.abort();
    if (!query) {
      this.results = null;
      this.hits.replaceChildren();
      this.show();
      return;
    }
    const stop = this.stop = new AbortController();
    const { archived } = this;
    try {
      const [titles, texts] = await Promise.all([
        get("/api/conversations", { q: query, archived }, { signal: stop.signal }),
        get("/api/search", { q: words(query) }, { signal: stop.signal }).catch(() => ({ hits: [] })),
      ]);
      this.results = titles.conversations;
      this.hits.replaceChildren(...texts.hits.map(hit).filter(Boolean));
    } catch (error) {
      if (error.name === "AbortError") return;
      text(this.note, error.message);
    }
    this.show();
  }

  async showArchive(archived) {
    this.archived = archived;
    set(this.shelf, { "aria-pressed": String(archived) });
    text(this.shelf.querySelector(".label"), archived ? "Leave the archive" : "Archive");
    this.found = new Map();
    this.next = undefined;
    this.show();
    await this.page();
    if (this.query) this.find();
  }

  more() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    if (scrollHeight - scrollTop - clientHeight < 300 && !this.query) this.page();
  }

  async page() {
    if (this.next === null || this.loading) return;
    this.loading = true;
    const { archived } = this;
    try {
      const page = await get("/api/conversations", { archived, limit: PAGE, before: this.next });
      if (archived !== this.archived) return;
      this.next = page.next;
      for (const each of page.conversations) this.found.set(each.session_key, each);
      this.show();
    } catch (error) {
      text(this.note, error.message);
    } finally {
      this.loading = false;
    }
  }
}

const cursor = (each) => JSON.stringify([each.last_active, each.session_key]);

/** Each word as a phrase, so that no character is an operator; the last one may be incomplete. */
const words = (query) => query.split(/\s+/).map((word) => `"${word.replaceAll('"', "")}"`)
  .filter((word) => word !== '""').join(" ");

function hit(found) {
  if (!found.session_key) return null;
  return h("li", null, h("a", { href: link("c", found.session_key) },
    h("span", { class: "title" }, found.title || "Without a title"),
    h("span", { class: "snippet muted" }, marked(found.snippet)),
    h("time", { class: "muted" }, when(found.timestamp))));
}

/** The snippet with its matches marked: the API puts them between >>> and <<<. */
const marked = (snippet) => snippet.split(/(>>>.*?<<<)/s).map((part) => (part.startsWith(">>>")
  ? h("mark", null, part.slice(3, -3)) : part));
