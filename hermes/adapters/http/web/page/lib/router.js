// Routes in the fragment of the address, such as `#/c/name:trip`. A view is a module with
// `open(container, params)`. It returns a function that closes it, or an object with `close` and
// `update(params)`, which is called instead if the next route has the same view.

let routes = [];
let container = null;
let current = null;
let generation = 0;

/** Serve routes: `[pattern, load, name]`, where `load()` imports the view. */
export function start(table, element, onRoute = () => {}) {
  routes = table;
  container = element;
  const show = () => open(onRoute);
  addEventListener("hashchange", show);
  show();
}

/** Go to a route, such as `/settings`. */
export function go(path, { replace = false } = {}) {
  if (!replace) location.hash = path;
  else {
    history.replaceState(null, "", `#${path}`);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

/** Return a route from its parts, percent-encoded. */
export const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

/** Return the current path, without `#`. */
export const path = () => location.hash.slice(1) || "/";

/** Close the view, for example because nobody is signed in any more. */
export function close() {
  generation += 1;
  current?.close();
  current = null;
}

/** Open the view of the current route again. */
export function reopen() {
  close();
  dispatchEvent(new HashChangeEvent("hashchange"));
}

async function open(onRoute) {
  const mine = ++generation;
  const [load, name, params] = match();
  onRoute(name, params);
  if (current?.name === name && current.update) {
    current.update(params);
    return;
  }
  current?.close();
  current = null;
  container.replaceChildren();
  try {
    const view = await load();
    if (mine !== generation) return;
    const opened = await view.open(container, params);
    const found = typeof opened === "function" ? { close: opened } : opened ?? {};
    const closing = { name, update: found.update, close: () => found.close?.() };
    if (mine === generation) current = closing;
    else closing.close();
  } catch (error) {
    if (mine !== generation) return;
    console.error(error);
    container.replaceChildren(failure(error));
  }
}

function match() {
  for (const [pattern, load, name] of routes) {
    const found = pattern.exec(path());
    if (found) return [load, name, found.slice(1).map(decode)];
  }
  const [, load, name] = routes[0];
  return [load, name, []];
}

function decode(part) {
  try {
    return part === undefined ? undefined : decodeURIComponent(part);
  } catch {
    return part;
  }
}

function failure(error) {
  const box = document.createElement("div");
  box.className = "empty";
  box.setAttribute("role", "alert");
  box.textContent = `This view could not be opened: ${error.message} Reload the page.`;
  return box;
}
