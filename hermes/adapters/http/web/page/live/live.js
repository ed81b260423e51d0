// The live view of operators: one stream brings the state of the runtime and then what changes.

import { url } from "../lib/api.js";
import { h, replace, set } from "../lib/dom.js";
import { link } from "../lib/router.js";
import { showConnection } from "../lib/status.js";
import { subscribe } from "../lib/streams.js";

const panels = (name) => async () => ({ open: (await import("./panels.js"))[name] });
const TABS = {
  overview: ["Overview", panels("overview")],
  actors: ["Conversations", () => import("./actors.js")],
  lineage: ["Lineage", () => import("./lineage.js")],
  cache: ["Cache", () => import("./cache.js")],
  delivery: ["Delivery", panels("delivery")],
  store: ["Store", panels("store")],
  limits: ["Limits", panels("limits")],
};
const KEYS = { actors: "session_key", lanes: "lane" };

/** Open the view. The route is `#/live/<tab>/<name>`. */
export async function open(container, params) {
  await style();
  const state = {};
  const links = Object.entries(TABS).map(([id, [label]]) => h("a", { href: link("live", id) }, label));
  const root = h("section", { class: "live-panel" });
  replace(container, h("div", { class: "live" }, h("h1", { class: "visually-hidden" }, "Live view"),
    h("nav", { class: "live-tabs", "aria-label": "Live view" }, links), root));
  let tab = null;
  let frame = 0;
  let newest = 0;
  const end = subscribe("/api/live/events", {
    onReset(data) {
      Object.assign(state, data);
      for (const [name, key] of Object.entries(KEYS)) {
        state[name] = new Map(data[name].map((each) => [each[key], each]));
      }
      state.count = data.runtime.commits.count;
      render();
    },
    onEvent(_, data) {
      for (const [name, value] of Object.entries(data)) {
        if (KEYS[name]) for (const each of value) state[name].set(each[KEYS[name]], each);
        else if (name.endsWith("_gone")) for (const key of value) state[name.slice(0, -5)].delete(key);
        else state[name] = value;
      }
      render();
    },
    onState: showConnection,
  });
  const clock = setInterval(() => { // ages grow, and so does the line of commits
    if (!state.at) return;
    const { count } = state.runtime.commits;
    state.commits = [...state.commits.slice(-59), Math.max(0, count - state.count)];
    state.count = count;
    if (!document.hidden) render();
  }, 1000);
  await update(params);
  return { update, close() {
    newest += 1;
    clearInterval(clock);
    cancelAnimationFrame(frame);
    end();
    tab?.close?.();
    showConnection("idle");
  } };

  async function update([route]) {
    const [given, ...rest] = (route ?? "").split("/");
    const id = TABS[given] ? given : "overview";
    Object.keys(TABS).forEach((each, at) => set(links[at], { "aria-current": each === id && "page" }));
    const mine = newest += 1;
    const module = await TABS[id][1]();
    if (mine !== newest) return;
    tab?.close?.();
    tab = module.open(replace(root), state, rest.join("/"));
    render();
  }

  function render() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => state.at && tab?.render());
  }
}

function style() {
  const href = url("live/live.css");
  return document.querySelector(`link[href="${href}"]`) ?? new Promise((done) => {
    document.head.append(h("link", { rel: "stylesheet", href, onload: done, onerror: done }));
  });
}
