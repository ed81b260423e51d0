// One recorded turn: what the agent was given, what it answered, and the same turn run again.

import { conversation, get, post } from "../lib/api.js";
import {
  announce, button, count, dateTime, duration, go, h, icon, link, money, openDialog, percent,
  plural, pretty, replace,
} from "../lib/dom.js";

const VERDICTS = {
  same: ["ok", "check", "These are the bytes that were sent: the hash is the same."],
  different: ["warn", "warning", "This is not exactly what was sent: the hash differs."],
  unknown: ["warn", "warning", "Whether this is what was sent is unknown."],
};
const OUTCOMES = { complete: "ok", partial: "warn", interrupted: "warn", failed: "danger" };
const EVENTS = { tool: "tool", retry: "retry", steered: "steer", approval: "key" };

export async function open(container, [key, id]) {
  const page = h("div", { class: "page turn-page" });
  const leaving = new AbortController();
  replace(container, page);
  replace(page, h("div", { class: "skeleton turn-wait", role: "status" },
    h("span", { class: "visually-hidden" }, "The turn is loading.")));
  let turn;
  try {
    turn = await get(conversation(key, `/turns/${encodeURIComponent(id)}`), null,
      { signal: leaving.signal });
    await show(page, key, turn, leaving.signal);
  } catch (error) {
    if (error.name !== "AbortError") replace(page, missing(error, key));
  }
  return () => leaving.abort();
}

async function show(page, key, turn, signal) {
  const original = turn.repeats?.conversation ? await get(
    conversation(turn.repeats.conversation, `/turns/${turn.repeats.turn_id}`), null, { signal },
  ).catch(() => null) : null;
  const title = h("h1", { tabindex: "-1" }, original ? "Original and branch" : "Past turn");
  const again = button("Run again", { class: "primary",
    onclick: () => runAgain(key, turn) }, "retry", true);
  replace(page,
    h("header", { class: "turn-head" },
      h("div", null, title, h("p", { class: "muted small-text" },
        `Turn ${turn.turn_id}, ${dateTime(turn.started_at)}`)),
      h("div", { class: "turn-actions" },
        h("a", { class: "button", href: link("c", key) }, icon("chat"), "Open the chat"), again)),
    original ? compared(key, original, turn) : [summary(turn), ...sections(key, turn)]);
  title.focus();
  announce(original ? "The original and its branch are shown side by side." : "The turn is shown.");
}

function missing(error, key) {
  const gone = error.status === 404;
  return h("div", { class: "empty", role: "alert" }, icon("history"),
    h("h1", null, gone ? "This turn is not recorded" : "The turn cannot be shown"),
    h("p", null, gone ? "It is older than recording, recording is off, or its conversation was "
      + "deleted." : error.message),
    h("a", { class: "button", href: link("c", key) }, "Back to the chat"));
}

// The figures of a turn

function summary(turn) {
  const figures = [
    ["Outcome", h("span", { class: `badge ${OUTCOMES[turn.status] ?? ""}` }, turn.status)],
    ["Duration", duration(turn.ended_at - turn.started_at)],
    ["Model", turn.models.join(", ") || "unknown"],
    turn.agent && ["Agent", turn.agent],
    ["Model calls", count(turn.calls)],
    turn.calls && ["Input", inputOf(turn, "token")],
    turn.calls && ["Output", plural(turn.output_tokens, "token")],
    turn.cost !== null && ["Cost", money(turn.cost)],
  ].filter(Boolean);
  return [h("dl", { class: "card turn-figures numbers" }, figures.map(([name, value]) =>
    h("div", null, h("dt", null, name), h("dd", null, value)))),
  turn.error && note("error", "warning", turn.error)];
}

function inputOf(used, what) {
  const input = used.input_tokens + used.cache_read_tokens + used.cache_write_tokens;
  const share = percent(input ? used.cache_read_tokens / input : 0);
  return `${plural(input, what)}, ${share} from the cache`;
}

const note = (kind, sign, text) => h("p", { class: `note ${kind}` }, icon(sign), h("span", null, text));

function sections(key, turn) {
  return [
    turn.model_calls.length ? turn.model_calls.map((call) => callCard(key, turn, call))
      : note("", "history", "This agent does not use the model client of Hermes. Its messages are "
        + "below; what it has sent to a model is unknown."),
    timeline(turn),
    h("section", null, h("h2", null, "What the agent answered"), missingRows(turn.missing),
      messageList(turn.messages)),
  ];
}

const missingRows = (number) => number > 0 && note("warn", "warning",
  `${plural(number, "message")} of this turn no longer exist.`);

function messageList(rows, marked = new Map()) {
  return h("ol", { class: "turn-messages" }, rows.map((row) => message(row, marked.get(row))));
}

function message(row, marks) {
  return h("li", { class: `turn-message ${row.role}` },
    h("span", { class: "badge" }, row.tool_name ? `${row.role}: ${row.tool_name}` : row.role),
    row.reasoning && fold("Reasoning", row.reasoning),
    row.text && h("div", { class: "turn-text" }, marks ?? row.text),
    (row.tool_calls ?? []).map((call) => h("p", { class: "turn-call" }, icon("tool"),
      h("code", null, `${call.name} ${call.arguments}`))),
    (row.parts ?? []).map((part) => h("p", { class: "turn-call" }, icon("file"),
      part.name || part.media_type || "file")));
}

// A call of the model

function callCard(key, turn, call) {
  const [kind, sign, text] = VERDICTS[call.verdict];
  const base = `/turns/${turn.turn_id}/calls/${call.number}`;
  const given = h("div", { class: "turn-given" });
  const body = h("div", null);
  return h("section", { class: "card turn-call-card", "aria-label": `Model call ${call.number + 1}` },
    h("h2", null, `Model call ${call.number + 1}`,
      h("span", { class: "badge" }, call.model ?? "unknown model"),
      call.error && h("span", { class: "badge danger" }, call.error)),
    h("p", { class: `turn-verdict ${kind}` }, icon(sign), h("span", null, text,
      call.reasons.length > 0 && ` ${sentence(call.reasons.join("; "))}`)),
    h("p", { class: "muted small-text numbers" }, usage(call)),
    call.system && fold("System prompt", call.system),
    call.tools.length > 0 && h("details", { class: "turn-fold" },
      h("summary", null, `Tools (${count(call.tools.length)})`), call.tools.map(toolEntry)),
    call.injected.map((each) => fold(`Injected (${each.role})`, each.content ?? "")),
    lazy(`Messages (${count(call.earlier + call.rows)})`, given, async () => {
      const found = await get(conversation(key, `${base}/messages`));
      replace(given, found.left_out > 0 && h("p", { class: "muted small-text" },
        `${plural(found.left_out, "earlier message")} are in the request, too.`),
      missingRows(found.missing), messageList(found.messages));
    }),
    fold("Settings", JSON.stringify(call.settings, null, 2)),
    lazy("Request body", body, async () => {
      const value = await get(conversation(key, `${base}/body`), null, { asText: true });
      replace(body, h("p", { class: "muted small-text" }, `SHA-256 when it was sent: `,
        h("code", { class: "turn-hash" }, call.digest ?? "unknown")),
      h("pre", { class: "turn-code", tabindex: "0" }, pretty(value)));
    }));
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

function usage(call) {
  const { usage: used } = call;
  const facts = [`took ${duration(call.duration / 1000)}`];
  if (call.first !== null) facts.push(`first token after ${duration((call.first - call.started) / 1000)}`);
  if (used) {
    facts.push(inputOf(used, "input token"), plural(used.output_tokens, "output token"));
    if (used.cost !== null) facts.push(money(used.cost));
  }
  return sentence(facts.join(" · ")).slice(0, -1);
}

function toolEntry(tool) {
  const made = tool.function ?? tool;
  return h("div", { class: "turn-tool" }, h("h3", null, made.name),
    h("p", { class: "muted small-text" }, made.description ?? ""),
    h("pre", { class: "turn-code", tabindex: "0" },
      JSON.stringify(made.parameters ?? made.input_schema ?? {}, null, 2)));
}

const fold = (title, text) => h("details", { class: "turn-fold" }, h("summary", null, title),
  h("pre", { class: "turn-code", tabindex: "0" }, text));

/** A fold whose content is loaded when it is opened for the first time. */
function lazy(title, content, load) {
  let asked = false;
  return h("details", { class: "turn-fold", ontoggle: async (event) => {
    if (asked || !event.target.open) return;
    asked = true;
    try {
      await load();
    } catch (error) {
      asked = false;
      replace(content, note("error", "warning", error.message));
    }
  } }, h("summary", null, title), content);
}

// Events on a line of time

function timeline(turn) {
  const total = Math.max(1, (turn.ended_at - turn.started_at) * 1000,
    ...turn.model_calls.map((call) => call.started + call.duration));
  const spans = [
    ...turn.model_calls.map((call) => ["spark", `Model call ${call.number + 1}`, call.started,
      call.duration, Boolean(call.error), "model"]),
    ...turn.events.map((event) => [EVENTS[event.kind] ?? "history", event.name || event.kind,
      event.started, event.duration, event.failed, event.kind]),
  ].sort((a, b) => a[2] - b[2]);
  if (!spans.length) return null;
  return h("section", null, h("h2", null, "Time line"),
    h("ol", { class: "card turn-line numbers" }, spans.map(([sign, name, start, length, bad, kind]) => {
      const bar = h("span", { class: `turn-bar ${kind} ${bad ? "bad" : ""}` });
      bar.style.left = `${Math.min(99, (start / total) * 100)}%`;
      bar.style.width = `${Math.max(0.6, ((length ?? 0) / total) * 100)}%`;
      return h("li", null,
        h("span", { class: "turn-what" }, icon(sign), name, bad && h("span", { class: "badge danger" }, "failed")),
        h("span", { class: "turn-track", "aria-hidden": "true" }, bar),
        h("span", { class: "muted small-text turn-when" }, `at ${duration(start / 1000)}`,
          length !== null && `, ${duration(length / 1000)}`));
    })));
}

// Original and branch

function compared(key, original, turn) {
  const [left, right] = differences(original.messages, turn.messages);
  const column = (title, each, href, marks) => h("section", { class: "turn-side", "aria-label": title },
    h("h2", null, title, href && h("a", { class: "small-text", href }, "Open")), summary(each),
    each.model_calls[0]?.injected.map((text) => fold(`Injected (${text.role})`, text.content ?? "")),
    messageList(each.messages, marks));
  return [
    h("p", { class: "muted small-text" }, parts(left, right)),
    h("div", { class: "turn-sides" },
      column("Original", original, link("turns", turn.repeats.conversation, turn.repeats.turn_id), left),
      column("Branch", turn, null, right)),
    h("details", { class: "turn-fold" }, h("summary", null, "Everything about the branch"),
      h("div", { class: "turn-page" }, sections(key, turn))),
  ];
}

// The dialog that runs a turn again, in a branch.

const WAIT = 700; // milliseconds between two looks at the turn that runs

/** Ask how to run a turn again, and open the result beside the original. */
function runAgain(key, turn) {
  const question = turn.messages.find((row) => row.role === "user")?.text ?? "";
  const text = h("textarea", { class: "field", id: "again-text", rows: 4, value: question });
  const model = h("input", { class: "field", id: "again-model", maxlength: 200, autocomplete: "off",
    placeholder: turn.models[0] ?? "the same" });
  const more = h("textarea", { class: "field", id: "again-more", rows: 3, maxlength: 100000 });
  const status = h("p", { class: "small-text", role: "status" });
  const start = button("Run again", { class: "primary", type: "submit" });
  const form = h("form", { class: "again", onsubmit: (event) => {
    event.preventDefault();
    send();
  } },
  h("p", { class: "muted small-text" }, "The turn runs in a branch before it; the original stays as "
    + "it is. Tools are not called again: their recorded results are used, and other calls need "
    + "your approval."),
  h("label", { for: "again-text" }, "Question"), text,
  h("label", { for: "again-model" }, "Model"), model,
  h("label", { for: "again-more" }, "Instructions for this turn"), more, status,
  h("div", { class: "actions" }, button("Cancel", { onclick: () => dialog.close() }), start));
  const dialog = openDialog("Run again from here", form);
  let closed = false;
  dialog.addEventListener("close", () => { closed = true; });

  async function send() {
    start.disabled = true;
    replace(status, "Starting …");
    const body = {};
    if (text.value.trim() && text.value !== question) body.text = text.value;
    if (model.value.trim()) body.model = model.value.trim();
    if (more.value.trim()) body.instructions = more.value.trim();
    try {
      const begun = await post(conversation(key, `/turns/${turn.turn_id}/repeat`), body);
      replace(status, "The agent answers …");
      await finished(begun);
      if (closed) return;
      dialog.close();
      go(link("turns", begun.conversation, begun.turn_id).slice(1));
    } catch (error) {
      start.disabled = false;
      replace(status, error.message);
    }
  }

  async function finished({ conversation: name, turn_id: id }) {
    while (!closed) {
      const { state } = await get(conversation(name, `/messages/${id}`));
      if (state !== "open") return;
      await new Promise((resolve) => setTimeout(resolve, WAIT));
    }
  }
}

// Differences between the messages of two turns, word by word.

const MAX_WORDS = 1500; // of a text; longer ones are marked as a whole

/** Return for each side a map from its rows to nodes in which other words are marked. */
function differences(left, right) {
  const marks = [new Map(), new Map()];
  for (const [a, b] of pairs(left, right)) {
    if (a?.text === b?.text) continue;
    const [first, second] = compare(a?.text ?? "", b?.text ?? "");
    if (a?.text) marks[0].set(a, first.map(([text, other]) => (other ? h("del", null, text) : text)));
    if (b?.text) marks[1].set(b, second.map(([text, other]) => (other ? h("ins", null, text) : text)));
  }
  return marks;
}

/** Say how many messages differ. */
function parts(left, right) {
  const number = Math.max(left.size, right.size);
  return number ? `${number === 1 ? "One message differs" : `${number} messages differ`}; `
    + "other words are marked." : "Both have the same messages.";
}

function* pairs(left, right) {
  for (let n = 0; n < Math.max(left.length, right.length); n += 1) yield [left[n], right[n]];
}

const words = (text) => text.match(/\s+|[^\s]+/g) ?? [];

/** Return both texts as runs `[text, differs]`, by their longest common words. */
function compare(a, b) {
  const [x, y] = [words(a), words(b)];
  if (x.length > MAX_WORDS || y.length > MAX_WORDS) return [[[a, true]], [[b, true]]];
  const width = y.length + 1;
  const table = new Uint16Array((x.length + 1) * width);
  for (let i = x.length - 1; i >= 0; i -= 1) {
    for (let j = y.length - 1; j >= 0; j -= 1) {
      table[i * width + j] = x[i] === y[j] ? table[(i + 1) * width + j + 1] + 1
        : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const [first, second] = [[], []];
  let [i, j] = [0, 0];
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) {
      add(first, x[i++], false);
      add(second, y[j++], false);
    } else if (j >= y.length || (i < x.length
      && table[(i + 1) * width + j] >= table[i * width + j + 1])) add(first, x[i++], true);
    else add(second, y[j++], true);
  }
  return [first, second];
}

function add(runs, text, differs) {
  const last = runs.at(-1);
  if (last?.[1] === differs) last[0] += text;
  else runs.push([text, differs]);
}
