// What the page says beside its content: notes, the state of the connection, and what screen
// readers announce.

import { button, h, icon, text } from "./dom.js";

const SECONDS = 6;
const regions = {};

/** Return the regions that `main.js` puts into the page. */
export function statusRegions() {
  regions.polite = h("div", { class: "visually-hidden", role: "status", "aria-live": "polite" });
  regions.toasts = h("div", { class: "toasts", role: "region", "aria-label": "Notifications" });
  regions.connection = h("div", { class: "connection", role: "status", "data-state": "idle" });
  return regions;
}

/** Let a screen reader say a text. */
export function announce(message) {
  text(regions.polite, "");
  setTimeout(() => text(regions.polite, message), 50);
}

/** Show a note for some seconds; an error stays until it is closed. */
export function toast(message, { error = false, action = null } = {}) {
  const close = () => note.remove();
  const note = h("div", { class: `toast ${error ? "error" : ""}`, role: error ? "alert" : "status" },
    icon(error ? "warning" : "check"), h("p", null, message),
    action && button(action.label, { class: "quiet small", onclick: () => { close(); action.run(); } }),
    button("Close", { class: "quiet small", onclick: close }, "close"));
  regions.toasts.append(note);
  while (regions.toasts.children.length > 3) regions.toasts.firstChild.remove();
  if (!error) setTimeout(close, SECONDS * 1000);
}

/** Say why something failed, unless it was cancelled or the sign-in is shown instead. */
export function fail(error) {
  if (error?.name === "AbortError" || error?.status === 401) return;
  console.error(error);
  toast(error?.message ?? String(error), { error: true });
}

/** Show the state of the connection: "live", "connecting", "offline" or "idle". */
export function showConnection(state, message = "") {
  const { connection } = regions;
  if (connection.dataset.state === state && connection.title === message) return;
  connection.dataset.state = state;
  connection.title = message;
  connection.replaceChildren(h("span", { class: "dot" }),
    h("span", { class: "label" }, message || LABELS[state]));
}

const LABELS = { live: "Connected", connecting: "Connecting …", offline: "Offline", idle: "" };
