// The one sidecar that this page talks to: its own. Questions, orders, and the stream of events.
//
// A one-time code comes in the address, behind the `#`, where no server sees it; it is taken out of the address at once
// and exchanged for a session, which is kept for this tab; a token that is given by hand is kept the same way. Either is
// shown as a Bearer token and never leaves otherwise. Events are read with `fetch`, because
// EventSource cannot show a token.

const KEY = "gantry-token";
const TIMEOUT_MS = 8000;
const EVENTS_SILENT_MS = 25_000;

/** An answer that is not what was asked for, with the status and the reason that the sidecar gave. */
export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

/** Nobody answered. */
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
    // Kept for as long as the page is.
  }
}

/** Exchange the code in the address bar for a session, and say whether there was one. Raises Refused or Unreachable. */
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

/** Take a token out of the address bar, and say whether there was one. */
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
    throw new Unreachable(error.name === "TimeoutError" ? "it did not answer in time" : "nobody answers");
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

/** A question. Raises Refused or Unreachable. */
export const get = (path) => ask(path, { headers: headers({}) }, TIMEOUT_MS);

/** An order. It may take its time. */
export const post = (path, body) =>
  ask(path, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) }, 70_000);

/** "/v1/queues/%25DLQ%25billing/0": each part safe in a path. */
export const path = (...parts) => `/v1/${parts.map((part) => encodeURIComponent(String(part))).join("/")}`;

/** Events, one after the other, until the stream ends or is silent for too long. Raises Refused or Unreachable. */
export async function* events() {
  const broken = new AbortController();
  let timer = setTimeout(() => broken.abort(), EVENTS_SILENT_MS);
  try {
    const answer = await fetch("/v1/events", {
      headers: headers({ Accept: "text/event-stream" }), cache: "no-store", credentials: "omit", signal: broken.signal,
    });
    if (!answer.ok) throw new Refused(answer.status, `status ${answer.status}`);
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
    throw new Unreachable("the stream of events broke off");
  } finally {
    clearTimeout(timer);
    broken.abort();
  }
}

function parse(block) {
  let kind = "message";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (!data) return null;
  return { kind, facts: JSON.parse(data) };
}
