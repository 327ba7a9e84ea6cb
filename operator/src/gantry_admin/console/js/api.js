// The client of the sidecar that serves this page: requests, orders, and the stream of events.
//
// A one-time code is in the address, after the `#`, which is not sent to servers; it is removed from the address at
// once and exchanged for a session, which is kept for this tab. A token that the user enters, or that is in the address
// instead of a code, is kept in the same way. Both are only ever sent as a Bearer token to the sidecar. Events are read
// with `fetch`, because EventSource cannot send a token.

const KEY = "gantry-token";
const TIMEOUT_MS = 8000;
const EVENTS_SILENT_MS = 25_000; // A stream that is silent for longer is broken: the sidecar sends a comment every 10 s.

/** An error answer, with its status and the sidecar's reason. */
export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

/** The sidecar did not answer. */
export class Unreachable extends Error {}

let memory = "";

export function token() {
  try {
    return sessionStorage.getItem(KEY) ?? memory;
  } catch {
    return memory;
  }
}

export function setToken(text) {
  memory = text;
  try {
    if (text) sessionStorage.setItem(KEY, text);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Without storage the token is kept until the page is closed.
  }
}

/** Exchange the code in the address bar for a session. Returns whether there was one. Raises Refused or Unreachable. */
export async function codeFromAddress() {
  const parts = new URLSearchParams(location.hash.replace(/^#\/?/, ""));
  const code = parts.get("code");
  if (code === null) return false;
  history.replaceState(null, "", location.pathname + location.search);
  const given = await ask("/v1/console/sessions", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code: code.trim() }),
  }, TIMEOUT_MS);
  setToken(given.session);
  return true;
}

/** Use the token in the address bar, and remove it there. Returns whether there was one. */
export function tokenFromAddress() {
  const parts = new URLSearchParams(location.hash.replace(/^#\/?/, ""));
  const found = parts.get("token");
  if (found === null) return false;
  setToken(found.trim());
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

function headers(more) {
  const shown = token();
  return shown ? { ...more, Authorization: `Bearer ${shown}` } : more;
}

async function ask(path, options, timeoutMs) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", credentials: "omit", ...options, signal: AbortSignal.timeout(timeoutMs) });
  } catch (error) {
    throw new Unreachable(error.name === "TimeoutError" ? "the request timed out" : "the sidecar is unreachable");
  }
  let document;
  try {
    document = await answer.json();
  } catch {
    document = {};
  }
  if (!answer.ok) throw new Refused(answer.status, String(document.reason ?? `status ${answer.status}`));
  return document;
}

/** Send a GET request, and return the document. Raises Refused or Unreachable. */
export const get = (path) => ask(path, { headers: headers({}) }, TIMEOUT_MS);

/** Send an order. It may take up to 70 s. Raises Refused or Unreachable. */
export const post = (path, body) =>
  ask(path, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) }, 70_000);

/** Save an answer as a file. The token is sent as with every request, so a plain link could not do this. */
export async function download(path, name) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", credentials: "omit", headers: headers({}), signal: AbortSignal.timeout(TIMEOUT_MS) });
  } catch {
    throw new Unreachable("the sidecar is unreachable");
  }
  if (!answer.ok) throw new Refused(answer.status, `status ${answer.status}`);
  const url = URL.createObjectURL(await answer.blob());
  const link = document.createElement("a");
  Object.assign(link, { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), TIMEOUT_MS);
}

/** Return a path with each part escaped, such as "/v1/queues/%25DLQ%25billing/0". */
export const path = (...parts) => `/v1/${parts.map((part) => encodeURIComponent(String(part))).join("/")}`;

/**
 * Yield events until the stream ends, is aborted, or is silent for too long. Raises Refused or Unreachable.
 *
 * `lastId` is the id of the last event of an earlier stream, after which this one continues.
 */
export async function* events(path = "/v1/events", { signal = null, lastId = null } = {}) {
  const broken = new AbortController();
  const abort = () => broken.abort();
  signal?.addEventListener("abort", abort);
  let timer = setTimeout(() => broken.abort(), EVENTS_SILENT_MS);
  try {
    const answer = await fetch(path, {
      headers: headers({ Accept: "text/event-stream", ...(lastId === null ? {} : { "Last-Event-ID": lastId }) }), cache: "no-store", credentials: "omit", signal: broken.signal,
    });
    if (!answer.ok) throw new Refused(answer.status, await reasonOf(answer));
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => broken.abort(), EVENTS_SILENT_MS);
      const blocks = (text + value).split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (event !== null) yield event;
      }
    }
  } catch (error) {
    if (error instanceof Refused) throw error;
    throw new Unreachable("the event stream was interrupted");
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
    broken.abort();
  }
}

async function reasonOf(answer) {
  try {
    return String((await answer.json()).reason ?? `status ${answer.status}`);
  } catch {
    return `status ${answer.status}`;
  }
}

function parse(block) {
  let kind = "message";
  let data = "";
  let id = null;
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("id: ")) id = line.slice(4);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (!data) return null;
  return { kind, id, facts: JSON.parse(data) };
}
