// The settings: who is signed in, the sessions, the colours, and for operators who may come in.

import { del, get, post, serverNow, url } from "./lib/api.js";
import { button, h, keyed, replace, set, text } from "./lib/dom.js";
import { dateTime, plural, relative, shortDate } from "./lib/format.js";
import { announce, fail, toast } from "./lib/status.js";
import { THEMES, choose, theme } from "./lib/theme.js";

const SECONDS = 5;
const CONFIRM_SECONDS = 4;
const SESSIONS = "/api/web-sessions";

export async function open(container) {
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
  const timer = setInterval(() => document.hidden || refresh(), SECONDS * 1000);
  refresh();
  return () => clearInterval(timer);

  async function refresh() {
    try {
      const { sessions } = await get(SESSIONS);
      keyed(lists.sessions, sessions, (each) => each.id, (each) => session(each, operator, refresh));
      if (operator) showPeople(await get("/api/pairings"));
    } catch (error) {
      fail(error);
    }
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
  try {
    await post("/api/sign-out");
    location.reload();
  } catch (error) {
    fail(error);
  }
}

async function share(box) {
  try {
    const { token, expires_in: seconds } = await post("/api/sign-in-links");
    const address = `${url("/")}#token=${token}`;
    const copy = button("Copy the link", { class: "small", onclick: () => navigator.clipboard
      .writeText(address).then(() => toast("Copied."), fail) }, "copy");
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
    try {
      const { source } = await post("/api/pairings", { code: code.value.trim(), role: role.value });
      toast(`${source.user_name ?? source.user_id} was let in.`);
      code.value = "";
      await refresh();
    } catch (error) {
      fail(error);
    }
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
