// The view of somebody who is not signed in: uses the link of `hermes web`, or asks for access.

import { post } from "./lib/api.js";
import { button, h, icon, replace } from "./lib/dom.js";
import { announce, fail, toast } from "./lib/status.js";

const TOKEN = /^#(?:token|code)=/;
const ASKED = "hermes.access-request";
const SECONDS = 2;

/** Show the view; `done()` is called when a person has signed in. */
export async function open(container, { done }) {
  let timer = 0;
  const card = h("section", { class: "card sign-in", "aria-labelledby": "sign-in-title" });
  replace(container, h("div", { class: "sign-in-page" }, card));
  const token = TOKEN.test(location.hash) ? location.hash.replace(TOKEN, "") : null;
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
        button("Copy the command", { class: "quiet small", onclick: copy }, "copy")),
      h("h2", null, "On another machine"),
      asked ? waiting(asked) : form());
    if (asked) timer = setTimeout(check, SECONDS * 1000, asked);
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
    let wait = SECONDS;
    try {
      const found = await post("/api/access-requests/check", { request: asked.request });
      if (!found.waiting) return finish(found);
    } catch (error) {
      if (error.status === 404) return forget(null, error.message);
      wait = error.retryAfter ?? SECONDS * 2;
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

async function copy() {
  await navigator.clipboard.writeText("hermes web").then(() => toast("Copied."), fail);
}
