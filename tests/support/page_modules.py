"""Empty pages of the server's origin, on which tests import single modules of the web page."""

from __future__ import annotations

from hermes.adapters.http.web.assets import POLICY, load_assets

BLANK = "<!doctype html><html lang=en><title>blank</title><body></body></html>"
SUBSCRIBE = """
async ([module, path]) => {
  const { subscribe } = await import(module);
  const inputs = (data) => [
    ...data.history.messages.filter((row) => row.role === "user").map((row) => row.text),
    ...data.waiting.map((message) => message.text),
  ];
  const shown = document.body.dataset;
  let texts = [], resets = 0, waiting = new Set();
  const states = [];
  const show = () => Object.assign(shown, { texts: texts.join(), resets, states: states.join() });
  window.unsubscribe = subscribe(path, {
    onReset(data) {
      texts = inputs(data);
      waiting = new Set(data.waiting.map((message) => message.inbox_id));
      resets += 1;
      show();
    },
    onEvent(kind, { event }) {
      // A message that waited when the state was read may be announced after it.
      if (kind === "message_accepted" && !waiting.delete(event.inbox_id)) texts.push(event.text);
      show();
    },
    onState(state, text) { shown.state = state; states.push(text); show(); },
  });
}
"""


def module(name):
    """Return the address of a module of the page."""
    return f"/page/{load_assets().digest}/{name}"


def serve_blank(context):
    """Serve an empty page at `/blank`, with the policy of the real one."""
    headers = {"Content-Security-Policy": POLICY, "Content-Type": "text/html"}
    context.route("**/blank", lambda route: route.fulfill(body=BLANK, headers=headers))


def blank_page(context, web, *, clock=False):
    """Open an empty page; with `clock`, the test decides what time it is."""
    page = context.new_page()
    if clock:
        page.clock.install()
    page.goto(f"{web.url}/blank")
    return page


def subscriber(context, web, path, **options):
    """Open a tab that reads a stream, and shows in the attributes of its body what it knows.

    `data-texts` are all inputs of the conversation.
    """
    page = blank_page(context, web, **options)
    read(page, path)
    return page


def read(page, path):
    """Read a stream in an empty page."""
    page.evaluate(SUBSCRIBE, [module("lib/api.js"), path])
