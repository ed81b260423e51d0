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

async function request(method, path, { query, body, key, signal } = {}) {
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
