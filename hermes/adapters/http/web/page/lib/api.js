// The server: calls of the API, and its event streams.

// Calls of the API: JSON in and out. The cookie of the sign-in goes along by itself.

let unauthorized = () => {};
let skew = 0;

/** What a refused request says. `status` is 0 if the server could not be reached. */
export class ApiError extends Error {
  constructor(status, code, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

/** Call `handler` when a request is refused because nobody is signed in. */
export function onUnauthorized(handler) {
  unauthorized = handler;
}

/** Return the time by the server's clock, in seconds. */
export const serverNow = () => Date.now() / 1000 + skew;

/** Return the address of a path such as "/api/usage", also below a prefix. */
export function url(path, query) {
  const found = new URL(path.replace(/^\//, ""), new URL(".", location.href.split("#")[0]));
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== null && value !== undefined) found.searchParams.set(name, value);
  }
  return found.href;
}

/** Return the path of a conversation, or of something below it. */
export const conversation = (name, rest = "") =>
  `/api/conversations/${encodeURIComponent(name)}${rest}`;

/** Return the name under which a browser stores things of a conversation: its id, if it has one. */
export const stored = (name) => /conv_[0-9a-f]{32}$/.exec(name)?.[0] ?? name;

/** Return a random key for a request that may be sent again. */
export const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)),
  (byte) => byte.toString(16).padStart(2, "0")).join("");

export const get = (path, query, options) => request("GET", path, { query, ...options });
export const post = (path, body = {}, options) => request("POST", path, { body, ...options });
export const patch = (path, body, options) => request("PATCH", path, { body, ...options });
export const del = (path, options) => request("DELETE", path, options);

async function request(method, path, { query, body, key, signal, asText } = {}) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (key) headers["Idempotency-Key"] = key;
  let response;
  try {
    response = await fetch(url(path, query), {
      method, headers, signal, cache: "no-store", credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw offline();
  }
  learnTime(response.headers.get("date"));
  const text = await response.text().catch(() => { throw offline(); });
  if (asText && response.ok) return text;
  return result(response.status, text, response.headers.get("retry-after"));
}

function learnTime(date) {
  const time = Date.parse(date ?? "");
  if (time) skew = (time + 500 - Date.now()) / 1000;
}

const offline = () => new ApiError(0, "offline",
  "The server cannot be reached. Check that Hermes runs, and try again.");

function result(status, text, retryAfter) {
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    if (status < 400) throw new ApiError(status, "invalid", "The server sent no valid answer.");
  }
  if (status < 400) return value;
  const { code = "error", message = `The request failed (${status}).` } = value?.error ?? {};
  if (status === 401) unauthorized();
  throw new ApiError(status, code, message, Number(retryAfter) || null);
}

/** Upload files as a form. `onProgress` gets the share that is sent. Returns the JSON result. */
export function upload(path, files, { onProgress = () => {}, signal } = {}) {
  const form = new FormData();
  for (const file of files) form.append("file", file, file.name);
  return new Promise((resolve, reject) => {
    const sent = new XMLHttpRequest();
    sent.open("POST", url(path));
    sent.upload.onprogress = (event) => event.lengthComputable
      && onProgress(event.loaded / event.total);
    sent.onerror = () => reject(offline());
    sent.onabort = () => reject(new DOMException("The upload was cancelled.", "AbortError"));
    sent.onload = () => {
      try {
        resolve(result(sent.status, sent.responseText, sent.getResponseHeader("retry-after")));
      } catch (error) {
        reject(error);
      }
    };
    signal?.addEventListener("abort", () => sent.abort());
    sent.send(form);
  });
}

// Event streams, shared by the tabs of a browser, which opens only six connections to a host.
//
// One tab, the reader, holds a lock. It reads the streams of all tabs over one connection, and posts
// each frame to the others. A tab fetches the state of a stream itself, and takes the frames after
// it. Each frame names the one before it, so a tab notices a gap, and closes it with a request of
// its own. When the reader goes, the next tab gets the lock and reads on. A browser without locks or
// channels has one connection per tab.

const SILENCE = 40_000; // the server sends a comment every 15 seconds
const MAX_PAUSE = 15_000;
const NAME = `hermes ${url("/")}`;
const WANTED = `${NAME} wants `;
const locks = globalThis.BroadcastChannel && navigator.locks;
const channel = locks && new BroadcastChannel(NAME);
const TEXTS = {
  live: "Connected", "catching-up": "Catching up…", connecting: "Connecting…", offline: "Offline",
  "signed-out": "Signed out", refused: "Not available",
};

const streams = new Set(); // those of this tab
const told = new Map(); // reader: the last id of each path that somebody wants
let reader = null; // set while this tab reads
let electing = false;
let heard = Date.now(); // when the reader was heard
let shared = { state: "connecting", retryAt: 0 }; // of the reader's connection
const retries = new Set(); // what waits for another attempt

/**
 * Read a stream of server-sent events. `onReset(data)` gets the state whenever it starts anew,
 * `onEvent(kind, data)` each event after it, once and in order, and `onState(state, text)` says what
 * the connection does. Returns a function that ends it.
 */
export function subscribe(path, { onReset, onEvent, onState = () => {} }) {
  const stream = {
    path, onReset, onEvent, onState, last: null, joined: false, closed: false, early: [],
    state: "connecting", retryAt: 0, shown: "", release: () => {},
  };
  streams.add(stream);
  locks?.request(WANTED + path, { mode: "shared" }, () => stream.closed
    || new Promise((resolve) => { stream.release = resolve; }));
  show(stream);
  join(stream);
  elect();
  return () => {
    stream.closed = true;
    streams.delete(stream);
    stream.controller?.abort();
    stream.release();
    setTimeout(() => { if (!streams.size) resign(); }, 1000);
  };
}

// The state, by a request of its own

async function join(stream) {
  stream.joined = false;
  for (let attempt = 0; !stream.closed && !stream.joined; attempt += 1) {
    const controller = stream.controller = new AbortController();
    try {
      const headers = stream.last ? { "Last-Event-ID": stream.last } : {};
      const response = await open(url(stream.path), { headers, signal: controller.signal });
      tell(stream, stream.last ? "catching-up" : "connecting");
      for await (const frame of frames(response)) {
        if (stream.closed) return;
        attempt = 0;
        take(stream, frame);
        if (frame.id && !frame.kind) break; // it is up to date
      }
      stream.joined = stream.last !== null;
    } catch (error) {
      if (stream.closed || refused(stream, error)) return;
    } finally {
      controller.abort();
    }
    if (!stream.joined) await pause(attempt, (state, retryAt) => tell(stream, state, retryAt));
  }
  if (stream.closed) return;
  show(stream);
  for (const frame of stream.early.splice(0)) accept(stream, frame);
  want(stream);
}

function want({ path, last }) {
  if (reader) wanted(path, last);
  else channel?.postMessage({ want: path, last });
}

function refused(stream, { status }) {
  if (status === 401) get("/api/web/session").catch(() => {}); // shows the sign-in
  const state = { 401: "signed-out", 403: "refused", 404: "refused" }[status];
  if (state) tell(stream, state);
  return Boolean(state);
}

// Frames

const number = (id) => Number(id.slice(id.lastIndexOf(".") + 1));
const origin = (id) => id.split(".", 2).join("."); // an attempt changes, and numbers only grow
const isNew = (id, last) => !last || origin(id) !== origin(last) || number(id) > number(last);

/** Take a frame that was posted, or read by this tab. */
function accept(stream, frame) {
  if (!stream.joined) {
    stream.early.push(frame);
    return;
  }
  if (!isNew(frame.id, stream.last)) return;
  const isNext = frame.kind === "reset" || (origin(frame.id) === origin(stream.last)
    && !isNew(frame.after ?? stream.last, stream.last));
  if (isNext) take(stream, frame);
  else {
    stream.early.push(frame);
    join(stream);
  }
}

function take(stream, { id, kind, data }) {
  if (!id) return;
  if (stream.last && !isNew(id, stream.last) && kind !== "reset") return;
  stream.last = id;
  if (kind === "reset") stream.onReset(JSON.parse(data));
  else if (kind) stream.onEvent(kind, JSON.parse(data));
}

async function open(address, options) {
  const response = await fetch(address, { cache: "no-store", credentials: "same-origin", ...options });
  if (response.ok) return response;
  const error = new Error(`The stream was refused (${response.status}).`);
  error.status = response.status;
  throw error;
}

async function* frames(response, onChunk = () => {}) {
  const chunks = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let at = 0; ;) {
    const { value, done } = await chunks.read();
    if (done) return;
    onChunk();
    rest += value;
    for (let end; (end = rest.indexOf("\n\n", at)) >= 0; at = 0) {
      yield parse(rest.slice(0, end));
      rest = rest.slice(end + 2);
    }
    at = Math.max(0, rest.length - 1);
  }
}

function parse(text) {
  const frame = {};
  for (const line of text.split("\n")) {
    const colon = line.indexOf(":");
    if (colon > 0) frame[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
  }
  const { stream, id, event, data } = frame;
  return { stream, id, kind: event, data };
}

// The reader

function elect(steal = false) {
  if (reader || (electing && !steal)) return;
  if (!locks) {
    lead();
    return;
  }
  electing = true;
  heard = Date.now();
  locks.request(NAME, steal ? { steal: true } : {}, () => {
    electing = false;
    return streams.size ? lead() : null;
  }).catch((error) => { // another tab has taken the lock
    if (error.name !== "AbortError") console.error(error);
    stop();
    setTimeout(elect, 1000);
  });
}

function stop() {
  const mine = reader;
  reader = null;
  if (mine) restart(mine);
  for (const retry of retries) retry();
}

function resign() {
  stop();
  told.clear();
}

async function lead() {
  const mine = reader = { behind: null, changed: false, wake: () => {}, controller: null };
  told.clear();
  for (const { path, last, joined } of streams) if (joined) told.set(path, last);
  channel?.postMessage({ who: true });
  for (let attempt = 0; reader === mine; attempt += 1) {
    mine.changed = false;
    await prune();
    if (!told.size) {
      attempt = -1;
      if (!mine.changed) await new Promise((resolve) => { mine.wake = resolve; });
      continue;
    }
    if (await read(mine)) attempt = 0;
    if (reader !== mine) return;
    if (mine.changed) attempt = -1;
    else await pause(attempt, report);
  }
}

// Forget the streams that no tab wants any more.
async function prune() {
  const names = locks ? (await locks.query()).held.map((each) => each.name) : [];
  for (const { path } of streams) names.push(WANTED + path);
  for (const path of told.keys()) if (!names.includes(WANTED + path)) told.delete(path);
}

/** Read all streams until the connection ends; whether it was open. */
async function read(mine) {
  const paths = [...told.keys()];
  const controller = mine.controller = new AbortController();
  let isOpen = false;
  mine.chunk = Date.now();
  try {
    const body = JSON.stringify({ streams: paths.map((path) => ({ path, after: told.get(path) })) });
    const headers = { "Content-Type": "application/json" };
    const response = await open(url("/api/streams"),
      { method: "POST", headers, body, signal: controller.signal });
    isOpen = true;
    if (shared.state !== "live") report("catching-up");
    const behind = mine.behind = new Set(paths);
    for await (const frame of frames(response, () => beat(mine))) {
      if (reader !== mine || controller.signal.aborted) return true;
      const path = paths[frame.stream];
      if (frame.kind === "refused") drop(path);
      else if (frame.id) distribute(path, frame);
      if ((!frame.kind || frame.kind === "refused") && behind.delete(path)) tellLast(path);
      if (!behind.size && shared.state !== "live") report("live");
    }
  } catch (error) {
    if (error.status === 401) get("/api/web/session").catch(() => {});
  } finally {
    mine.behind = null;
  }
  return isOpen;
}

function distribute(path, { id, kind, data }) {
  const frame = { id, kind, data, after: told.get(path) };
  told.set(path, id);
  if (kind) channel?.postMessage({ path, frame });
  deliver(path, frame);
}

function deliver(path, frame) {
  for (const stream of streams) if (stream.path === path) accept(stream, frame);
}

// The server does not serve a path any more: each tab asks for itself, and learns why.
function drop(path) {
  told.delete(path);
  channel?.postMessage({ refused: path });
  rejoin(path);
}

function rejoin(path) {
  for (const stream of streams) if (stream.path === path && stream.joined) join(stream);
}

function beat(mine) {
  const now = Date.now();
  if (now - heard > 5000) channel?.postMessage(shared);
  mine.chunk = heard = now;
}

/** A tab wants a stream, and has everything up to an id. */
function wanted(path, last) {
  channel?.postMessage(shared);
  if (!told.has(path)) {
    told.set(path, last);
    clearTimeout(reader.timer);
    reader.timer = setTimeout(restart, 20, reader); // several tabs may say so at once
  } else if (!reader.behind) for (const retry of retries) retry(); // the server can be reached
  else if (!reader.behind.has(path)) tellLast(path);
}

/** Tell the tabs up to where they have been sent a stream, so that one that has less asks for it. */
function tellLast(path) {
  if (told.has(path)) channel?.postMessage({ reading: [[path, told.get(path)]] });
}

function restart(mine) {
  mine.changed = true;
  mine.controller?.abort();
  mine.wake();
}

function report(state, retryAt = 0) {
  shared = { state, retryAt };
  channel?.postMessage(shared);
  showAll();
}

if (channel) {
  channel.onmessage = ({ data }) => {
    if (data.want) {
      if (reader) wanted(data.want, data.last);
    } else if (data.wake) reconnect();
    else {
      heard = Date.now();
      if (data.path) deliver(data.path, data.frame);
      else if (data.who) for (const stream of streams) stream.joined && want(stream);
      else if (data.refused) rejoin(data.refused);
      else if (data.reading) catchUp(data.reading);
      else if (data.state) {
        shared = data;
        showAll();
      }
    }
  };
}

// The reader has everything up to these ids. A tab that has less asks for it.
function catchUp(reading) {
  for (const [path, last] of reading) {
    for (const stream of streams) {
      if (stream.path === path && stream.joined && isNew(last, stream.last)) join(stream);
    }
  }
}

// Attempts

async function pause(attempt, say) {
  const seconds = Math.min(MAX_PAUSE, 500 * 2 ** attempt) * (0.5 + Math.random() / 2);
  say(navigator.onLine ? "connecting" : "offline", Date.now() + seconds);
  await new Promise((resolve) => {
    const go = () => {
      clearTimeout(timer);
      retries.delete(go);
      resolve();
    };
    const timer = setTimeout(go, seconds);
    retries.add(go);
  });
}

/** Try again now, and give up a connection that may be dead. */
function reconnect(suspect = false) {
  for (const retry of retries) retry();
  if (reader && Date.now() - reader.chunk >= (suspect ? 0 : SILENCE / 2)) reader.controller?.abort();
}

function wake(suspect) {
  reconnect(suspect);
  if (!reader) channel?.postMessage({ wake: true });
}

addEventListener("online", () => wake(true));
addEventListener("offline", () => reconnect(true));
addEventListener("pageshow", () => wake());
document.addEventListener("freeze", resign);
document.addEventListener("resume", () => {
  elect();
  for (const stream of streams) if (stream.joined) join(stream);
});
document.addEventListener("visibilitychange", () => document.hidden || wake());

setInterval(() => {
  if (!streams.size) return;
  const now = Date.now();
  if (reader && now - reader.chunk > SILENCE) reader.controller?.abort();
  if (!reader && !document.hidden && now - heard > SILENCE + 5000) elect(true); // it is frozen
  showAll();
}, 1000);

// What the page says

function tell(stream, state, retryAt = 0) {
  Object.assign(stream, { state, retryAt });
  show(stream);
}

function showAll() {
  for (const stream of streams) show(stream);
}

function show(stream) {
  const { state, retryAt } = stream.joined ? shared : stream;
  const seconds = Math.ceil((retryAt - Date.now()) / 1000);
  const waits = state === "connecting" && seconds > 0;
  const text = waits ? `Reconnecting in ${seconds} s…` : TEXTS[state];
  if (stream.shown === text) return;
  stream.shown = text;
  stream.onState(state, text);
}
