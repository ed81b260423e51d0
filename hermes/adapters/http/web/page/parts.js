// The parts of a conversation: messages, the running turn, files and usage, and what is below them.

import {
  ApiError, conversation, del, get, patch, post, serverNow, stored, upload, url,
} from "./lib/api.js";
import {
  announce, attempt, build, button, bytes, copyText, count, countdown, dateTime, day, duration,
  fail, h, icon, keyed, link, money, openDialog, openImage, pretty, replace, set, shortCount, text, time,
  when,
} from "./lib/dom.js";

// The messages. Only a window of them is in the document, so that thousands scroll as smoothly as ten.

const WINDOW = 120;
const STEP = 40;
const NEAR = 700; // pixels from an edge at which more is loaded
const DECISION = /^\[The user has (approved|refused) one call of (.*?), with exactly these arguments: /s;
const END = 60; // pixels from the end within which the view follows

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
      await attempt(async () => {
        await this.view.loadEarlier();
        this.anchored(() => this.update());
      });
      this.loading = false;
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
    node.classList.toggle("latest", Boolean(item.latest));
    node.classList.toggle("continued", Boolean(item.continued));
    const meta = node.querySelector(".meta");
    const turn = item.last && this.view.usage.of(item.row);
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
function reasoning(value) {
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
  return { call, finished: Boolean(row), content, parts: row?.parts ?? [],
    seconds: row?.duration / 1000 || seen?.seconds, failed: row?.failed ?? seen?.failed };
}

// Tool calls as cards that can be unfolded: name, arguments, result, duration, errors.

const MAX_SHOWN = 4000;
const INTERRUPTED = "[interrupted before it answered]";

/** Create a card. `update` brings it up to date. */
function createTool() {
  const parts = {
    name: h("code", { class: "tool-name" }),
    brief: h("span", { class: "tool-brief" }),
    time: h("span", { class: "tool-time numbers" }),
    state: h("span", { class: "tool-state" }),
    body: h("div", { class: "tool-body" }),
  };
  const card = h("details", { class: "tool", ontoggle: () => card.open && fill(card) },
    h("summary", null, parts.state, parts.name, parts.brief, parts.time, icon("chevron")), parts.body);
  card.parts = parts;
  return card;
}

/** Show a call: `{call, finished, failed, content, parts, seconds}`. */
function updateTool(card, tool, name) {
  const { parts } = card;
  const kind = !tool.finished ? "running" : tool.failed ? "failed"
    : tool.content === INTERRUPTED ? "stopped" : "done";
  if (card.dataset.state !== kind) {
    card.dataset.state = kind;
    replace(parts.state, icon({ running: "tool", failed: "warning", stopped: "stop", done: "check" }[kind]),
      h("span", { class: "visually-hidden" }, LABELS[kind]));
  }
  text(parts.name, tool.call.name);
  text(parts.brief, brief(tool.call.arguments));
  text(parts.time, tool.seconds ? duration(tool.seconds) : kind === "failed" ? "failed" : "");
  card.tool = tool;
  card.conversation = name;
  if (card.open) fill(card);
}

const LABELS = { running: "Running:", failed: "Failed:", stopped: "Stopped:", done: "Done:" };

function fill(card) {
  const { tool, parts } = card;
  const signature = `${tool.call.arguments.length} ${tool.finished} ${tool.content?.length}`;
  if (card.dataset.filled === signature) return;
  card.dataset.filled = signature;
  replace(parts.body,
    section("Arguments", tool.call.arguments),
    !tool.finished ? h("p", { class: "muted" }, "It is still running.")
      : section(tool.failed ? "Error" : "Result", tool.content ?? ""),
    files(tool.parts ?? [], card.conversation));
}

function section(title, content) {
  const whole = pretty(content);
  const code = h("pre", { tabIndex: 0, "aria-label": title }, whole.slice(0, MAX_SHOWN) || "(nothing)");
  const more = whole.length > MAX_SHOWN && button(`Show all ${count(whole.length)} characters`, {
    class: "small",
    onclick: (event) => {
      code.textContent = whole;
      code.focus();
      event.currentTarget.remove();
    },
  });
  return h("section", null, h("header", null, h("h4", null, title),
    button(`Copy ${title.toLowerCase()}`, { class: "quiet small", onclick: () => copyText(content) }, "copy")),
  code, more);
}

/** Return the most telling argument in one line. */
function brief(json) {
  let found = json;
  try {
    found = Object.values(JSON.parse(json)).find((each) => typeof each === "string") ?? json;
  } catch {
    // It is no JSON, and shown as it is.
  }
  return found === "{}" ? "" : found.slice(0, 160).replace(/\s+/g, " ");
}

// The running turn: what it answers, its reasoning, its tools, and the answer while it grows.

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

// Texts of messages as DOM. The server parses Markdown; without its nodes a text is shown as it is.

/** Return the text of a row. */
function markdown(row) {
  const nodes = row.nodes ?? [["p", [row.text ?? ""], { class: "plain" }]];
  return h("div", { class: "markdown" }, build(nodes));
}

// Files: those of messages, and those that are attached to the next one.

const SHOWN = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** Return the files of a message: images are shown, others are cards to download. */
function files(parts, name) {
  const found = parts.filter((part) => part.file);
  if (!found.length) return null;
  return h("div", { class: "files" }, found.map((part) => {
    const href = url(conversation(name, `/files/${encodeURIComponent(part.file)}`));
    return SHOWN.has(part.media_type) ? image(part, href) : fileCard(part, href);
  }));
}

function image(part, src) {
  const label = part.name ?? "Image";
  const picture = h("img", { src, alt: label, loading: "lazy", width: part.width, height: part.height });
  picture.addEventListener("error", () => picture.closest("button")?.replaceWith(fileCard(part, src)));
  return h("button", { type: "button", class: "image", "aria-label": `Enlarge ${label}`,
    onclick: () => openImage(src, label) }, picture);
}

function fileCard(part, href) {
  return h("a", { class: "file", href, download: part.name ?? "file" }, icon("file"),
    h("span", { class: "file-name" }, part.name ?? "File"),
    h("span", { class: "muted numbers" }, [part.media_type, part.size && bytes(part.size)]
      .filter(Boolean).join(" · ")), icon("download"));
}

/** The files that will be sent with the next message. They are uploaded at once. */
class Attachments {
  constructor(name, onChange) {
    this.name = name;
    this.items = [];
    this.onChange = onChange;
    this.next = 0;
    this.element = h("ul", { class: "attached", "aria-label": "Attached files", hidden: true });
  }

  get uploading() {
    return this.items.some((each) => !each.part && !each.error);
  }

  /** The parts that name the files, for the message. */
  get parts() {
    return this.items.filter((each) => each.part).map((each) => each.part);
  }

  /** Upload files. */
  add(list) {
    for (const file of list) {
      const item = { id: this.next++, file, share: 0, stop: new AbortController() };
      if (SHOWN.has(file.type)) item.preview = URL.createObjectURL(file);
      this.items.push(item);
      this.send(item);
    }
    this.show();
  }

  /** Take over parts that are stored already, for example those of a message that is edited. */
  restore(parts) {
    for (const part of parts) {
      this.items.push({ id: this.next++, file: { name: part.name ?? "File", size: part.size ?? 0 }, part });
    }
    this.show();
  }

  async send(item) {
    try {
      const found = await upload(conversation(this.name, "/files"), [item.file], {
        signal: item.stop.signal,
        onProgress: (share) => { item.share = share; this.show(); },
      });
      [item.part] = found.parts;
    } catch (error) {
      if (error.name === "AbortError") return;
      item.error = error instanceof ApiError ? error.message : "The file could not be sent.";
    }
    this.show();
  }

  remove(item) {
    item.stop?.abort();
    if (item.preview) URL.revokeObjectURL(item.preview);
    this.items = this.items.filter((each) => each !== item);
    this.show();
    this.onChange("removed");
  }

  clear() {
    for (const item of this.items) if (item.preview) URL.revokeObjectURL(item.preview);
    this.items = [];
    this.show();
  }

  show() {
    this.element.hidden = !this.items.length;
    keyed(this.element, this.items, (item) => item.id, (item) => this.create(item), update);
    this.onChange("changed");
  }

  create(item) {
    return h("li", { class: "attached-file" },
      item.preview ? h("img", { src: item.preview, alt: "" }) : icon("file"),
      h("span", { class: "file-name" }, item.file.name),
      h("span", { class: "muted numbers state" }),
      button(`Remove ${item.file.name}`, { class: "quiet small", onclick: () => this.remove(item) }, "close"),
      h("progress", { max: 1, value: 0, "aria-label": `Upload of ${item.file.name}` }));
  }
}

function update(node, item) {
  const progress = node.querySelector("progress");
  const done = item.part || item.error;
  progress.hidden = Boolean(done);
  progress.value = item.share ?? 1;
  node.classList.toggle("failed", Boolean(item.error));
  text(node.querySelector(".state"), item.error ?? (done ? bytes(item.file.size)
    : `${Math.round(item.share * 100)}%`));
}

// What the turns of a conversation have used, and what they cost.

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
      .flatMap((turn) => [[turn.turn_id, turn], [turn.last_at, turn]]));
    this.onChange();
  }

  close() {
    clearTimeout(this.timer);
  }

  /** The usage of the turn of a message, found by its time if the turn was not recorded. */
  of(row) {
    return this.turns.get(row.turn_id ?? row.timestamp);
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

const cost = (turn) => (turn.unpriced && !turn.cost ? "cost unknown" : money(turn.cost));

/** "4.2K in · 655 out · $0.012" */
function summary(turn) {
  return [`${shortCount(turn.input_tokens)} in`, `${shortCount(turn.output_tokens)} out`,
    cost(turn)].join(" · ");
}

// Where a message is written, and what waits above it.

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
