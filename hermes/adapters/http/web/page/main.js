// The shell of the page: header, navigation, theme, sign-in, and the view of the current route.

import { get, onUnauthorized } from "./lib/api.js";
import { button, h, icon, replace } from "./lib/dom.js";
import * as router from "./lib/router.js";
import { statusRegions } from "./lib/status.js";
import { THEMES, choose, onTheme, theme } from "./lib/theme.js";

// Each route: its pattern, its module, and its name in the navigation.
const ROUTES = [
  [/^\/(?:c\/(.*))?$/, () => import("./chat/chat.js"), "chat"],
  [/^\/live(?:\/(.*))?$/, () => import("./live/live.js"), "live"],
  [/^\/turns\/([^/]*)\/([^/]*)$/, () => import("./turns/turns.js"), "turns"],
  [/^\/settings$/, () => import("./settings.js"), "settings"],
];
const NAVIGATION = [
  ["chat", "Chat", "chat", "#/"],
  ["live", "Live view", "live", "#/live"],
  ["settings", "Settings", "settings", "#/settings"],
];
const SIGN_IN = /^#(?:token|code)=/;

const regions = statusRegions();
const view = h("main", { id: "view", class: "view" });
const links = new Map(NAVIGATION.map(([name, label, sign, href]) => [name,
  h("a", { class: "nav-link", href, title: label }, icon(sign), h("span", { class: "label" }, label)),
]));
const header = h("header", { class: "top" },
  h("a", { class: "brand", href: "#/", "aria-label": "Hermes, home" },
    h("span", { class: "mark" }), h("span", { class: "name" }, "Hermes")),
  h("div", { id: "top-start", class: "top-slot" }),
  h("nav", { class: "navigation", "aria-label": "Main" }, ...links.values()),
  regions.connection, themeSwitch());

replace(document.body,
  h("a", { class: "skip", href: "#view", onclick: skip }, "Skip to the content"),
  header, view, regions.polite, regions.toasts);

let started = false;
let signingIn = false;
onUnauthorized(showSignIn);
addEventListener("hashchange", (event) => {
  if (!SIGN_IN.test(location.hash)) return;
  event.stopImmediatePropagation(); // it is no route
  location.reload();
});
start();

async function start() {
  if (SIGN_IN.test(location.hash)) {
    showSignIn();
    return;
  }
  try {
    showRole(await get("/api/me"));
  } catch (error) {
    if (error.status === 401) return; // the sign-in is shown
  }
  if (started) router.reopen();
  else router.start(ROUTES, view, showRoute);
  started = true;
}

/** Show the links that the signed-in person may use. */
function showRole(session) {
  const roles = session?.roles ?? [session?.role];
  links.get("live").hidden = !roles.includes("operator");
}

function showRoute(name) {
  for (const [each, element] of links) {
    if (each === name) element.setAttribute("aria-current", "page");
    else element.removeAttribute("aria-current");
  }
  document.body.dataset.view = name;
  document.title = name === "chat" ? "Hermes" : `${links.get(name)?.title ?? "Turn"} · Hermes`;
}

/** Show the sign-in; `params.done()` is called by it when a person has signed in. */
async function showSignIn() {
  if (signingIn) return;
  signingIn = true;
  router.close();
  replace(view);
  document.body.dataset.view = "sign-in";
  let close = null;
  const done = () => {
    close?.();
    signingIn = false;
    start();
  };
  close = await (await import("./sign_in.js")).open(view, { done });
}

function themeSwitch() {
  const names = Object.keys(THEMES);
  const icons = { system: "system", light: "sun", dark: "moon" };
  const turn = () => choose(names[(names.indexOf(theme()) + 1) % names.length]);
  const element = button("Colours", { class: "quiet theme", onclick: turn }, "system");
  onTheme((name) => {
    const label = `Colours: ${THEMES[name].toLowerCase()}`;
    replace(element, icon(icons[name]));
    element.setAttribute("aria-label", label);
    element.title = label;
  });
  return element;
}

function skip(event) {
  event.preventDefault();
  view.tabIndex = -1;
  view.focus();
}
