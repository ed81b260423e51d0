// The shell of the page: header, navigation, colours, sign-in, settings, and the current view.

import { del, get, onUnauthorized, post, serverNow, url } from "./lib/api.js";
import {
  announce, attempt, button, closeView, copyText, dateTime, fail, h, icon, keyed, plural, relative, reopenView,
  replace, set, shortDate, startRouter, statusRegions, text, toast,
} from "./lib/dom.js";

// The colours of the page: those of the system, or as chosen by hand.

const KEY = "hermes.theme";
const root = document.documentElement;

const THEMES = { system: "System", light: "Light", dark: "Dark" };

/** Return the chosen theme. */
const theme = () => root.dataset.theme ?? "system";

/** Choose a theme, here and in the other tabs. */
function choose(name) {
  if (name === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, name);
  showTheme(name);
}

addEventListener("storage", (event) => event.key === KEY && showTheme(event.newValue ?? "system"));

function showTheme(name) {
  if (name === "system") delete root.dataset.theme;
  else root.dataset.theme = name;
  labelThemeSwitch();
}

// Each route: its pattern, its module, and its name in the navigation.
const ROUTES = [
  [/^\/(?:c\/(.*))?$/, async () => (await import("./chat.js")).openChat, "chat"],
  [/^\/live(?:\/(.*))?$/, async () => (await import("./inspect.js")).openLive, "live"],
  [/^\/turns\/([^/]*)\/([^/]*)$/, async () => (await import("./inspect.js")).openTurn, "turns"],
  [/^\/settings$/, () => openSettings, "settings"],
];
const NAVIGATION = [
  ["chat", "Chat", "chat", "#/"],
  ["live", "Live view", "live", "#/live"],
  ["settings", "Settings", "settings", "#/settings"],
];
const SIGN_IN = /^#(?:token|code)=/;

const themeSwitch = button("Colours", { class: "quiet theme", onclick: nextTheme }, "system");
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
  regions.connection, themeSwitch);

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
  if (started) reopenView();
  else startRouter(ROUTES, view, showRoute);
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
  closeView();
  replace(view);
  document.body.dataset.view = "sign-in";
  let close = null;
  const done = () => {
    close?.();
    signingIn = false;
    start();
  };
  close = openSignIn(view, { done });
}

function nextTheme() {
  const names = Object.keys(THEMES);
  choose(names[(names.indexOf(theme()) + 1) % names.length]);
}

function labelThemeSwitch() {
  const label = `Colours: ${theme()}`;
  replace(themeSwitch, icon({ system: "system", light: "sun", dark: "moon" }[theme()]));
  set(themeSwitch, { "aria-label": label, title: label });
}

function skip(event) {
  event.preventDefault();
  view.tabIndex = -1;
  view.focus();
}

// The view of somebody who is not signed in: uses the link of `hermes web`, or asks for access.

const ASKED = "hermes.access-request";
const POLL_SECONDS = 2;

/** Show the view; `done()` is called when a person has signed in. */
function openSignIn(container, { done }) {
  let timer = 0;
  const card = h("section", { class: "card sign-in", "aria-labelledby": "sign-in-title" });
  replace(container, h("div", { class: "sign-in-page" }, card));
  const token = SIGN_IN.test(location.hash) ? location.hash.replace(SIGN_IN, "") : null;
  // The token must not stay in the address, in the history or in a bookmark.
  if (token) history.replaceState(null, "", location.pathname + location.search);
  if (token) exchange(token);
  else welcome();
  return () => clearTimeout(timer);

  async function exchange(value, options = {}) {
    show("Signing in …", h("p", { class: "muted", role: "status" }, "One moment."));
    try {
      finish(await post("/api/sign-in", { token: value, ...options }));
    } catch (error) {
      if (error.code === "other_person") other(value, error.message);
      else welcome(error.message);
    }
  }

  function other(value, message) {
    show("Sign in as somebody else?", h("p", null, message),
      h("div", { class: "actions" },
        button("Stay signed in", { class: "primary", onclick: done }),
        button("Switch", { onclick: () => exchange(value, { switch: true }) })));
  }

  function welcome(problem) {
    const asked = JSON.parse(sessionStorage.getItem(ASKED) ?? "null");
    show("Sign in to Hermes",
      problem && h("p", { class: "note error", role: "alert" }, icon("warning"), problem),
      h("h2", null, "On the machine where Hermes runs"),
      h("p", { class: "muted" }, "Run this command. It opens a page that is signed in."),
      h("div", { class: "command" }, h("code", null, "hermes web"),
        button("Copy the command", { class: "quiet small", onclick: () => copyText("hermes web") }, "copy")),
      h("h2", null, "On another machine"),
      asked ? waiting(asked) : form());
    if (asked) timer = setTimeout(check, POLL_SECONDS * 1000, asked);
  }

  function form() {
    const name = h("input", { class: "field", id: "visitor", maxlength: 60, required: true,
      autocomplete: "name" });
    const ask = button("Ask for access", { class: "primary", type: "submit" });
    return h("form", { onsubmit: submit },
      h("label", { for: "visitor" }, "Your name, which the operator will see"),
      h("div", { class: "row" }, name, ask));

    async function submit(event) {
      event.preventDefault();
      if (!name.value.trim()) return;
      ask.disabled = true;
      try {
        const asked = await post("/api/access-requests", { name: name.value.trim() });
        sessionStorage.setItem(ASKED, JSON.stringify(asked));
        welcome();
        card.querySelector(".code")?.focus();
      } catch (error) {
        ask.disabled = false;
        fail(error);
      }
    }
  }

  function waiting(asked) {
    return h("div", { class: "waiting" },
      h("p", null, "Tell the operator of this bot your code:"),
      h("output", { class: "code", tabindex: -1, "aria-label": `Your code is ${asked.code}` }, asked.code),
      h("p", { class: "muted small-text" },
        "The operator enters it in the settings of this page, or sends ",
        h("code", null, `/pair ${asked.code}`), " to the bot. Then you are signed in here by itself."),
      button("Cancel", { class: "quiet small", onclick: forget }));
  }

  async function check(asked) {
    let wait = POLL_SECONDS;
    try {
      const found = await post("/api/access-requests/check", { request: asked.request });
      if (!found.waiting) return finish(found);
    } catch (error) {
      if (error.status === 404) return forget(null, error.message);
      wait = error.retryAfter ?? POLL_SECONDS * 2;
    }
    timer = setTimeout(check, wait * 1000, asked);
  }

  function forget(event, problem) {
    clearTimeout(timer);
    sessionStorage.removeItem(ASKED);
    welcome(problem);
  }

  function finish(me) {
    sessionStorage.removeItem(ASKED);
    announce(`Signed in as ${me.name}.`);
    done();
  }

  function show(title, ...content) {
    clearTimeout(timer);
    replace(card, h("h1", { id: "sign-in-title" }, title), ...content);
  }
}

// The settings: who is signed in, the sessions, the colours, and for operators who may come in.

const REFRESH_SECONDS = 5;
const CONFIRM_SECONDS = 4;
const SESSIONS = "/api/web-sessions";

async function openSettings(container) {
  const me = await get("/api/me");
  const operator = me.roles.includes("operator");
  const lists = { sessions: entries(), requests: entries(), people: entries() };
  replace(container, h("div", { class: "page settings" },
    h("h1", null, "Settings"), account(me), colours(),
    section("Sessions", operator ? "The browsers in which people are signed in."
      : "The browsers in which you are signed in.", lists.sessions),
    operator && section("Let somebody in",
      "A visitor of this page, or somebody who writes to the bot, is shown a code.",
      codeForm(refresh), lists.requests),
    operator && section("People", "Everybody who was let in. A name is what they call themselves.",
      lists.people)));
  const timer = setInterval(() => document.hidden || refresh(), REFRESH_SECONDS * 1000);
  refresh();
  return () => clearInterval(timer);

  async function refresh() {
    await attempt(async () => {
      const { sessions } = await get(SESSIONS);
      keyed(lists.sessions, sessions, (each) => each.id, (each) => session(each, operator, refresh));
      if (operator) showPeople(await get("/api/pairings"));
    });
  }

  function showPeople({ requests, users }) {
    keyed(lists.requests, requests, ({ source }) => JSON.stringify(source), (each) => entry(
      each.source.user_name ?? each.source.user_id,
      `${each.source.platform}, asked ${relative(each.asked_at, serverNow())}; needs the code`));
    keyed(lists.people, together(users), (each) => `${each.platform} ${each.user_id} ${each.role}`,
      (each) => person(each, me, refresh), (node, each) => text(node.querySelector(".muted"), about(each)));
  }
}

function section(title, about, ...content) {
  return h("section", { class: "card" }, h("div", null, h("h2", null, title),
    h("p", { class: "muted small-text" }, about)), ...content);
}

const entries = () => h("ul", { class: "entries" });

function entry(title, about, ...actions) {
  return h("li", null, h("div", { class: "about" }, h("div", { class: "title" }, title),
    h("div", { class: "muted small-text" }, about)), ...actions);
}

function account(me) {
  const link = h("div", { role: "status" });
  return h("section", { class: "card", "aria-label": "Your account" },
    h("div", { class: "person" },
      h("span", { class: "face", "aria-hidden": "true" }, [...me.name][0]?.toUpperCase()),
      h("div", { class: "about" }, h("strong", null, me.name), " ",
        h("span", { class: "badge accent" }, me.roles.join(", ")),
        me.expires_at && h("div", { class: "muted small-text" },
          `Signed in until ${shortDate(me.expires_at)}`)),
      button("Sign in another device", { onclick: () => share(link) }),
      button("Sign out", { onclick: signOut })),
    link);
}

async function signOut() {
  await attempt(async () => {
    await post("/api/sign-out");
    location.reload();
  });
}

async function share(box) {
  try {
    const { token, expires_in: seconds } = await post("/api/sign-in-links");
    const address = `${url("/")}#token=${token}`;
    const copy = button("Copy the link", { class: "small", onclick: () => copyText(address) }, "copy");
    replace(box, h("p", { class: "small-text" },
      `Open this link on the other device within ${seconds} seconds. It works once.`),
    h("div", { class: "command" }, h("code", null, address), copy));
    copy.focus();
    setTimeout(() => replace(box), seconds * 1000);
  } catch (error) {
    fail(error);
  }
}

function colours() {
  return h("section", { class: "card" }, h("h2", { id: "colours" }, "Colours"),
    h("fieldset", { class: "choice", "aria-labelledby": "colours" },
      ...Object.entries(THEMES).map(([name, label]) => h("label", null, h("input", {
        type: "radio", name: "theme", value: name, checked: theme() === name,
        onchange: () => choose(name),
      }), label))));
}

function session(each, operator, refresh) {
  const title = [each.client ?? "Unknown browser", operator && ` · ${each.name}`,
    each.current && h("span", { class: "badge ok" }, "this browser")];
  const about = `Since ${shortDate(each.created_at)}, until ${shortDate(each.expires_at)}`;
  const node = entry(title, about, !each.current && confirmed("Revoke", async () => {
    await del(`${SESSIONS}/${each.id}`);
    announce("The session was revoked.");
    await refresh();
  }));
  return set(node, { title: dateTime(each.created_at) });
}

/** Return a button that asks once more before it does something. */
function confirmed(label, run) {
  let timer = 0;
  const element = button(label, { class: "danger small", onclick: click });
  const words = element.querySelector(".label");
  return element;

  async function click() {
    if (timer) {
      element.disabled = true;
      await run().catch(fail);
      element.disabled = false;
    } else {
      text(words, `${label} now?`);
      timer = setTimeout(reset, CONFIRM_SECONDS * 1000);
    }
  }

  function reset() {
    timer = 0;
    text(words, label);
  }
}

function codeForm(refresh) {
  const code = h("input", { class: "field", id: "code", maxlength: 20, required: true,
    placeholder: "ABCD-1234", autocomplete: "off", autocapitalize: "characters", spellcheck: "false" });
  const role = h("select", { class: "field", id: "role" },
    h("option", { value: "user" }, "User"), h("option", { value: "operator" }, "Operator"));
  return h("form", { class: "row", onsubmit: submit },
    h("label", { for: "code", class: "visually-hidden" }, "Code"), code,
    h("label", { for: "role", class: "visually-hidden" }, "Role"), role,
    button("Let in", { class: "primary", type: "submit" }));

  async function submit(event) {
    event.preventDefault();
    await attempt(async () => {
      const { source } = await post("/api/pairings", { code: code.value.trim(), role: role.value });
      toast(`${source.user_name ?? source.user_id} was let in.`);
      code.value = "";
      await refresh();
    });
  }
}

/** Return one entry for each user, who has a principal for each session of the page. */
function together(users) {
  const found = new Map();
  for (const each of users) {
    const key = `${each.platform} ${each.user_id}`;
    const known = found.get(key);
    if (known) known.count += 1;
    else found.set(key, { ...each, count: each.account ? 1 : 0 });
  }
  return [...found.values()];
}

const PLATFORMS = { web: "session", http: "token" };

function about({ platform, count, paired_at: at }) {
  const unit = PLATFORMS[platform];
  return `${platform}, since ${shortDate(at)}${unit ? `, ${plural(count, unit)}` : ""}`;
}

function person(each, me, refresh) {
  const own = each.platform === me.platform && each.user_id === me.user;
  return entry([each.name ?? each.user_id, h("span", { class: "badge" }, each.role)], about(each),
    own ? h("span", { class: "badge ok" }, "you") : confirmed("Remove", async () => {
      await del(`/api/principals/${[each.platform, each.user_id].map(encodeURIComponent).join("/")}`);
      announce("Removed.");
      await refresh();
    }));
}

labelThemeSwitch();
start();
