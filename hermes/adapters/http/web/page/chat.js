// The chat: the list of conversations, the one that is open with its state, and the keyboard.

import {
  conversation, del, get, newKey, patch, post, serverNow, stored, subscribe, url,
} from "./lib/api.js";
import {
  announce, ask, attempt, button, confirm, dateTime, fail, go, GrowingView, h, icon, keyed, link,
  money, narrow, openDialog, openMenu, period, plural, replace, set, showConnection, text, toast, when,
} from "./lib/dom.js";
import { Approvals, Composer, Messages, Queue, Running, UsageOf } from "./parts.js";

const NEW = "hermes.new";

/** Open the chat; `params` has the name of a conversation, or nothing for a new one. */
export function openChat(container, params) {
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
    if (!narrow.matches) return;
    root.classList.toggle("drawer-open", opened);
    menu.setAttribute("aria-expanded", String(opened));
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
      this.hits.replaceChildren(...texts.hits.filter((each) => each.session_key).map((each) => this.hit(each)));
    } catch (error) {
      if (error.name === "AbortError") return;
      text(this.note, error.message);
    }
    this.show();
  }

  /** Return an entry for a message that was found. */
  hit({ session_key: key, title, snippet, timestamp }) {
    return h("li", null, h("a", { href: link("c", key) },
      h("span", { class: "title" }, title || this.entry(key)?.preview || "Without a title"),
      h("span", { class: "snippet muted" }, marked(snippet)), h("time", { class: "muted" }, when(timestamp))));
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

// One conversation: its parts, its state, what is sent, and what can be done with it.

const HISTORY = 100; // messages that are read at once
const SUGGESTIONS = ["What can you do?", "Summarize a text for me", "Help me plan my week"];

/** A conversation that is shown. `list` is the sidebar; `onSent` is called with the first message. */
class ConversationView {
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
    const page = await get(conversation(this.name, "/history"), { before, limit: HISTORY, rendered: true });
    this.state.prepend(page.messages, HISTORY);
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

// What the page knows of a conversation: a snapshot, and every event since, applied in order.

/** The state of one conversation. `apply` takes what its stream sends. */
class State {
  constructor() {
    this.known = false;
    this.session_key = null;
    this.session_id = null;
    this.title = null;
    this.archived = false;
    this.settings = {};
    this.rows = [];
    this.earlier = false;
    this.waiting = new Map();
    this.turn = null;
    this.approvals = [];
    this.notes = []; // replies that the transcript does not have, such as those of commands
    this.accepted = new Set(); // event ids of messages that the server has
    this.decisions = new Set(); // messages that approve or deny a tool call
    this.finished = new Map(); // tool calls that ended while this page was open, with their durations
    this.version = 0; // of the rows and notes
  }

  /** Apply an event: its kind and data. */
  apply(kind, data) {
    if (kind === "reset") {
      this.reset(data);
      return;
    }
    this.ending = this.turn;
    if (kind === "progress") this.say(data);
    else if (data.event) this.receive(data.event, data.turn_id);
    this.change(data.changes ?? {});
  }

  reset(data) {
    const older = data.session_id === this.session_id && data.history.earlier
      ? this.rows.filter((row) => row.id < (data.history.messages[0]?.id ?? 0)) : [];
    const { history, waiting, ...rest } = data;
    Object.assign(this, rest, { known: true });
    this.rows = [...older, ...history.messages];
    this.earlier = older.length ? this.earlier : history.earlier;
    this.waiting = byId(waiting);
    if (this.turn) this.turn = begun(this.turn);
    this.version += 1;
  }

  receive(event, turnId) {
    const { turn } = this;
    const ours = turn && turn.turn_id === turnId;
    switch (event.type) {
      case "message_accepted":
        this.accepted.add(event.event_id);
        if (/^\/(approve|deny) /.test(event.text)) this.decisions.add(event.inbox_id);
        if (!this.waiting.has(event.inbox_id)) {
          this.waiting.set(event.inbox_id, { parts: [], ...event });
        }
        break;
      case "turn_started":
        this.turn = begun({ turn_id: turnId, inbox_ids: event.inbox_ids ?? [], parts: [], tools: [],
          attempt: event.attempt, started_at: serverNow() });
        break;
      case "turn_ended":
        this.note(event);
        for (const id of event.inbox_ids ?? []) this.waiting.delete(id);
        if (ours) this.turn = null;
        break;
      case "notice":
        this.addNote("notice", event.text);
        break;
      default:
        if (ours) progress(turn, event, this.finished);
    }
  }

  change(changes) {
    const { history, waiting, turn, ...rest } = changes;
    Object.assign(this, rest);
    if (waiting) this.waiting = byId(waiting);
    if (turn !== undefined) this.turn = turn && begun(turn);
    if (!history) return;
    if (history.replace) {
      this.rows = [];
      this.earlier = history.earlier;
    }
    const last = this.rows.at(-1)?.id ?? 0;
    const added = history.messages.filter((row) => row.id > last);
    for (const row of added) {
      if (row.part !== undefined) row.shown = this.ending?.parts.find(isText(row.part))?.view.element;
    }
    this.rows = [...this.rows, ...added];
    this.version += 1;
  }

  /** Take what the running turn has said. */
  say({ turn_id, restart, parts = [] }) {
    const { turn } = this;
    if (turn?.turn_id !== turn_id) return;
    turn.retrying = null;
    if (restart) turn.parts = turn.parts.filter((part) => part.type !== "text");
    for (const update of parts) {
      const { type, number } = update;
      let part = turn.parts.find((each) => each.number === number && each.type === type);
      if (!part) {
        part = { type, number, text: "", view: type === "text" ? new GrowingView() : null };
        turn.parts.push(part);
      }
      if (type === "text") part.view.update(update);
      else part.text += update.text;
    }
  }

  /** Add an earlier page of messages. */
  prepend(rows, limit) {
    const first = this.rows[0]?.id ?? Infinity;
    this.rows = [...rows.filter((row) => row.id < first), ...this.rows];
    this.earlier = rows.length >= limit;
    this.version += 1;
  }

  note({ reply, dropped_by, inbox_ids = [] }) {
    const decides = inbox_ids.some((id) => this.decisions.has(id));
    if (!reply || dropped_by || (decides && reply.status === "command")) return;
    if (reply.status === "interrupted") this.addNote("stopped", "You stopped this answer.");
    else if (reply.status === "command") this.addNote("reply", reply.text);
    else if (reply.status === "failed" || reply.status === "refused") {
      this.addNote("error", reply.text || reply.error || "The turn failed.");
    }
  }

  addNote(kind, text) {
    if (!text) return;
    this.notes = [...this.notes.slice(-49), { id: `n${this.version}.${this.notes.length}`, kind, text,
      pending: true, after: 0 }];
    this.version += 1;
  }

  /** Place new notes after the rows that came with them. */
  placeNotes() {
    for (const note of this.notes) {
      if (note.pending) Object.assign(note, { pending: false, after: this.rows.at(-1)?.id ?? 0 });
    }
  }

  /** The messages that the running turn answers, and those that wait for the next one. */
  open() {
    const taken = new Set(this.turn?.inbox_ids ?? []);
    const answering = [];
    const queued = [];
    for (const message of this.waiting.values()) {
      if (message.decided_call) continue;
      (taken.has(message.inbox_id) || !this.turn ? answering : queued).push(message);
    }
    return { answering, queued };
  }
}

const byId = (messages) => new Map(messages.map((each) => [each.inbox_id, each]));

const isText = (number) => (part) => part.type === "text" && part.number === number;

const begun = (turn) => ({ retrying: null, ...turn, tools: turn.tools.map((each) => ({ ...each })),
  parts: (turn.parts ?? []).map((part) => ({ ...part,
    view: part.type === "text" ? new GrowingView(part) : null })) });

function progress(turn, event, finished) {
  const at = performance.now() / 1000;
  turn.retrying = null;
  if (event.type === "retrying") turn.retrying = event.text;
  else if (event.type === "steered") turn.inbox_ids = [...turn.inbox_ids, ...event.inbox_ids ?? []];
  else if (event.type === "tool_started") {
    turn.tools.push({ call: event.call, at });
    turn.parts.push({ type: "tool", call_id: event.call.id });
  } else if (event.type === "tool_finished") {
    const tool = turn.tools.find((each) => each.call.id === event.call_id);
    if (tool) {
      Object.assign(tool, { finished: true, failed: event.failed, content: event.content,
        parts: event.parts, seconds: tool.at && at - tool.at });
      finished.set(event.call_id, tool);
    }
  }
}

// Messages that were sent and are not accepted yet. They are kept in the session storage with their
// Idempotency-Key, so that a lost connection or a killed server neither loses nor doubles one.

const PREFIX = "hermes.outbox.";
const DELAYS = [1, 2, 4, 8, 15];

/** The unaccepted messages of one conversation. `onChange` is called when they change. */
class Outbox {
  constructor(name, onChange) {
    this.name = name;
    this.place = PREFIX + stored(name);
    this.messages = read(this.place);
    this.closed = false;
    this.onChange = onChange;
    this.timer = null;
    this.tries = 0;
    this.busy = false;
    this.flush();
  }

  /** Send a message: `text`, `parts`, and `verb` ("messages", "steer", "retry", "edit"). */
  add({ text = "", parts = [], verb = "messages", body = {} }) {
    this.messages.push({ key: newKey(), text, parts, verb, body, at: Date.now() / 1000 });
    this.save();
    this.flush();
  }

  /** Forget messages that the stream has shown as accepted. */
  settle(state) {
    const open = ({ key, id }) => !state.accepted.has(`key:${key}`) && !state.waiting.has(id);
    const left = this.messages.filter((each) => open(each) && !each.done);
    if (left.length !== this.messages.length) {
      this.messages = left;
      this.save();
    }
  }

  /** Forget a message that was refused; returns it. */
  discard(key) {
    const found = this.messages.find((each) => each.key === key);
    this.messages = this.messages.filter((each) => each !== found);
    this.save();
    return found;
  }

  /** Send what waits, in order, now: for example because the connection is back. */
  async flush() {
    clearTimeout(this.timer);
    if (this.busy || this.closed) return;
    this.busy = true;
    try {
      let next;
      while (!this.closed && (next = this.messages.find((each) => !each.id && !each.error))) {
        if (!(await this.send(next))) break;
      }
    } finally {
      this.busy = false;
    }
  }

  async send(message) {
    const { key, text, parts, verb, body } = message;
    const sent = verb === "retry" ? {} : { text, parts };
    const background = verb === "steer" ? {} : { background: true };
    try {
      const found = await post(conversation(this.name, `/${verb}`), { ...sent, ...background, ...body },
        { key });
      this.tries = 0;
      message.id = found.message_id;
      this.save();
      setTimeout(() => this.forget(message), 4000);
      return true;
    } catch (error) {
      if (error.status && error.status < 500 && error.status !== 429 && error.status !== 401
        && error.status !== 408) {
        message.error = error.message;
        this.save();
        return true;
      }
      const wait = error.retryAfter ?? DELAYS[Math.min(this.tries, DELAYS.length - 1)];
      message.late = error.status ? error.message : "Not sent yet: the server cannot be reached.";
      this.tries += 1;
      this.save();
      if (!this.closed) this.timer = setTimeout(() => this.flush(), wait * 1000);
      return false;
    }
  }

  forget(message) {
    if (!this.messages.includes(message)) return;
    message.done = true;
    this.messages = this.messages.filter((each) => each !== message);
    this.save();
  }

  save() {
    if (this.messages.length) sessionStorage.setItem(this.place, JSON.stringify(this.messages));
    else sessionStorage.removeItem(this.place);
    this.onChange();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}

function read(place) {
  try {
    return JSON.parse(sessionStorage.getItem(place) ?? "[]").filter((each) => !each.id);
  } catch {
    return [];
  }
}

// What can be done with a conversation and its messages. The stream shows the results.

/** Ask for a title, and set it. */
async function rename(key, title) {
  const found = await ask("Rename conversation", "Title", title ?? "", "Rename");
  if (found && found !== title) await attempt(() => patch(conversation(key), { title: found }));
}

/** Archive a conversation, or take it back. */
async function archive(key, archived) {
  const done = await attempt(() => patch(conversation(key), { archived }));
  if (done) {
    toast(archived ? "Archived." : "It is in the list again.",
      archived ? { action: { label: "Undo", run: () => archive(key, false) } } : {});
  }
}

/** Delete a conversation, after a question; whether it was deleted. */
async function remove(key, title) {
  const sure = await confirm("Delete this conversation?",
    `“${title}” and all of its messages are deleted for good.`, "Delete");
  if (!sure) return false;
  const done = await attempt(() => del(conversation(key)));
  if (done) toast("Deleted.");
  return Boolean(done);
}

/** The menu of a conversation: `found` is its entry in the list. */
function entries(found, { onDeleted = () => {} } = {}) {
  const key = found.session_key;
  const title = found.title || found.preview || "New conversation";
  const download = (format) => ({ label: `Download as ${format === "json" ? "JSON" : "Markdown"}`,
    icon: "download", href: url(conversation(key, "/export"), { format }), download: "" });
  return [
    { label: "Rename", icon: "edit", run: () => rename(key, found.title) },
    { label: found.archived ? "Take out of the archive" : "Archive", icon: "archive",
      run: () => archive(key, !found.archived) },
    download("markdown"), download("json"), null,
    { label: "Delete", icon: "trash", danger: true,
      run: async () => { if (await remove(key, title)) onDeleted(); } },
  ];
}

/** Copy a conversation up to a message, which is included, and open the copy. */
async function branchAfter(view, row) {
  const { rows, session_id } = view.state;
  const at = rows.findIndex((each) => each.id === row.id);
  let next = at + 1;
  while (rows[next]?.role === "tool") next += 1; // results belong to the message with the calls
  const to = `conv_${newKey()}`;
  const body = { to, session_id, title: `${view.title()} (branch)`.slice(0, 1000) };
  if (rows[next]) body.before = rows[next].id;
  const change = await attempt(() => post(conversation(view.name, "/branch"), body));
  if (change) {
    go(link("c", change.session_key).slice(1));
    toast("This is a branch: the original stays as it is.");
  }
}

/** Take back the last message of the user and its answer. */
async function undo(view) {
  const { rows, session_id } = view.state;
  const last = rows.at(-1)?.id;
  const text = rows.findLast((row) => row.role === "user")?.text ?? "";
  const done = await attempt(() => post(conversation(view.name, "/undo"), { session_id, last }));
  if (done?.changed) {
    if (!view.composer.input.value) view.composer.fill(text);
    toast("Taken back. The text is in the field below.");
  }
}

const KINDS = { branch: "Branch", compression: "After a summary", fork: "Fork", import: "Imported", new: "" };

/** Show the sessions of a conversation: branches, and what came before. One can go on with each. */
async function showBranches(view) {
  const found = await attempt(() => get(conversation(view.name, "/sessions")));
  if (!found) return;
  const current = view.state.session_id;
  const entry = ({ session, preview }) => h("li", { class: session.id === current ? "current" : "" },
    h("div", null, h("strong", null, session.title || preview || "Without a title"),
      h("span", { class: "muted small-text", title: dateTime(session.last_active) }, [KINDS[session.kind],
        plural(session.message_count, "message"), when(session.last_active)].filter(Boolean).join(" · "))),
    session.id === current ? h("span", { class: "badge accent" }, icon("check"), "Open")
      : button(`Go on with this`, { class: "small", onclick: async () => {
        const body = { target: session.id, session_id: current };
        if (await attempt(() => post(conversation(view.name, "/switch"), body))) dialog.close();
      } }));
  const dialog = openDialog("Branches and earlier sessions", [
    h("p", { class: "muted small-text" }, "An edited message makes a branch; the older version is kept here."),
    h("ul", { class: "branches" }, found.sessions.map(entry)),
  ], { wide: true });
}
