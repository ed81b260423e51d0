// The chat: the list of conversations, the one that is open, and the keyboard.

import { get, newKey, subscribe } from "../lib/api.js";
import {
  button, dateTime, go, h, icon, keyed, link, openDialog, openMenu, period, replace, set,
  showConnection, text, when,
} from "../lib/dom.js";
import { ConversationView, entries } from "./conversation.js";

const NEW = "hermes.new";

/** Open the chat; `params` has the name of a conversation, or nothing for a new one. */
export function open(container, params) {
  let view = null;
  const list = new List({ onNew, onDeleted, onChosen: () => drawer(false) });
  const main = h("div", { class: "chat-main" });
  const shade = h("div", { class: "shade", onclick: () => drawer(false) });
  const menu = button("Conversations", { class: "quiet drawer", "aria-expanded": "false",
    onclick: () => drawer(!root.classList.contains("drawer-open")) }, "menu");
  const help = button("Keyboard shortcuts", { class: "quiet help", onclick: showShortcuts });
  replace(help, "?");
  help.setAttribute("aria-label", "Keyboard shortcuts");
  help.title = "Keyboard shortcuts (?)";
  const root = h("div", { class: "chat" }, list.element, shade, main);
  const slot = document.getElementById("top-start");
  slot?.append(menu);
  list.element.querySelector(".list-end").append(help);
  container.append(root);
  const stopListening = listen({
    "?": showShortcuts, "/": search, n: onNew, i: () => view.composer.focus(),
    "[": () => step(-1), "]": () => step(1), j: () => view.messages.step(1), k: () => view.messages.step(-1),
    g: () => { view.messages.scroller.scrollTop = 0; }, G: () => view.messages.toEnd(),
    c: () => act("Copy message"), e: () => act("Edit message"), b: () => act("Branch from here"),
    r: () => act("Answer again"), u: () => act("Take back"), Escape: escape,
  });
  update(params);
  return { close, update };

  function update([name]) {
    const wanted = name || newName();
    if (view?.name === wanted || (view && name && view.state.session_key === name)) return;
    view?.end();
    view = new ConversationView(wanted, { list, onSent: () => sent(wanted) });
    replace(main, view.element);
    list.select(wanted);
    drawer(false);
    if (matchMedia("(hover: hover)").matches) view.composer.focus();
  }

  function close() {
    stopListening();
    view?.end();
    list.end();
    menu.remove();
    container.replaceChildren();
  }

  /** The name of the conversation that has no message yet: its draft survives a reload. */
  function newName() {
    const name = localStorage.getItem(NEW) ?? `conv_${newKey()}`;
    localStorage.setItem(NEW, name);
    return name;
  }

  function sent(name) {
    if (localStorage.getItem(NEW) !== name) return;
    localStorage.removeItem(NEW);
    history.replaceState(null, "", link("c", name));
  }

  function onNew() {
    drawer(false);
    go("/");
    view.composer.focus();
  }

  function onDeleted(key) {
    if (view?.key() !== key) return;
    view.end();
    view = null;
    go("/", { replace: true });
  }

  function search() {
    drawer(true);
    list.search.focus();
    list.search.select();
  }

  function step(by) {
    const path = list.neighbour(by);
    if (path) go(path);
  }

  /** Press a button of the focused message, or else of the latest that has it. */
  function act(label) {
    const focused = document.activeElement?.closest?.("article");
    const within = focused ? [focused] : [...main.querySelectorAll("article")].reverse();
    const found = within.map((each) => each.querySelector(`[aria-label="${label}"]`))
      .find((each) => each && getComputedStyle(each).display !== "none");
    found?.click();
  }

  function escape() {
    if (root.classList.contains("drawer-open")) drawer(false);
    else if (view.composer.editing) view.composer.fill("");
    else if (view.state.turn) view.stop();
    else document.activeElement?.blur();
  }

  function drawer(opened) {
    root.classList.toggle("drawer-open", opened);
    menu.setAttribute("aria-expanded", String(opened));
    if (!matchMedia("(max-width: 760px)").matches) return;
    list.element.inert = !opened;
    if (opened) list.search.focus();
    else if (list.element.contains(document.activeElement)) menu.focus();
  }
}

// The list of conversations: by day, with search in titles and texts. It follows its stream.

const PAGE = 50;
const PAUSE = 180; // milliseconds after the last key until a search

/** The sidebar. `onDeleted(key)` is called when a conversation was deleted here. */
class List {
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

// Keyboard shortcuts. Letters count only if nobody is typing.

const KEYS = [
  ["Anywhere", [["?", "Show these shortcuts"], ["/", "Search conversations"], ["n", "New conversation"],
    ["i", "Write a message"], ["[ ]", "Previous or next conversation"],
    ["Esc", "Stop the answer, or close what is open"]]],
  ["Messages", [["j k", "Next or previous message"], ["g G", "First loaded or latest message"],
    ["c", "Copy"], ["e", "Edit your message"], ["b", "Branch from here"], ["r", "Answer again"],
    ["u", "Take back"]]],
  ["Writing", [["Enter", "Send, or queue while an answer runs"], ["Shift Enter", "New line"],
    ["Ctrl Enter", "Send into the running answer"], ["/", "Commands, at the beginning"],
    ["Tab", "Complete a command"]]],
];

/** Show all shortcuts. */
function showShortcuts() {
  if (document.querySelector("dialog[open]")) return;
  const dialog = openDialog("Keyboard shortcuts", h("div", { class: "shortcuts" },
    KEYS.map(([title, keys]) => h("section", null, h("h3", { class: "muted" }, title),
      h("dl", null, keys.map(([key, what]) => h("div", null,
        h("dt", null, key.split(" ").map((each) => h("kbd", null, each))), h("dd", null, what))))))),
  { wide: true });
  dialog.tabIndex = 0; // it may scroll
  dialog.focus();
}

/** Call `actions[key]` for keys that are pressed outside of fields. Returns a function to end it. */
function listen(actions) {
  const handle = (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (document.querySelector("dialog[open], .menu")) return;
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (typing && event.key !== "Escape") return;
    const run = actions[event.key];
    if (!run || (event.repeat && !"jk[]".includes(event.key))) return;
    event.preventDefault();
    run(event);
  };
  document.addEventListener("keydown", handle);
  return () => document.removeEventListener("keydown", handle);
}
