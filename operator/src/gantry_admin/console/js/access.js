// Authentication: if the sidecar refuses a request because of a missing or unknown token, the user is asked for one, and
// the request is retried once. And what the present token permits, so that a page can say why it offers no changes.

import { get, path, Refused, setToken, token } from "./api.js";
import { askToken } from "./dialogs.js";
import { changed, refreshNow, state } from "./store.js";

const known = { token: null, access: null };

/** Return the result of `work`, after asking for a token if it requires one. Raises what `work` raises. */
export async function withToken(work, why) {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 401) throw error;
    const given = await askToken(`${why} The sidecar answered: ${error.message}.`);
    if (!given) throw error;
    useToken(given);
    return work();
  }
}

/** Ask for a token, and use it. Returns whether one was entered, or the present one was removed. */
export async function enterToken() {
  const given = await askToken(token() ? "Enter another token, or nothing to remove the current one." : "A token may read messages, or also change roles.");
  if (given === null) return false;
  setToken(given);
  state.notice = null;
  refreshNow();
  changed();
  return true;
}

function useToken(given) {
  setToken(given);
  refreshNow();
}

/** Return why the present token permits no changes; empty if it does, or while that is unknown. */
export function changeFault() {
  if (known.token !== token()) {
    Object.assign(known, { token: token(), access: null });
    loadAccess(); // an unknown token is reported by the requests of the view
  }
  return known.access === null || known.access.may_change || known.access.needs_token ? "" : known.access.reason;
}

async function loadAccess() {
  const asked = token();
  try {
    const access = await get(path("console", "access"));
    if (asked === token()) known.access = access;
  } catch (error) {
    if (!(error instanceof Error)) throw error;
  }
  changed();
}

/** Ask for a token if changes need one and none is in use. Resolves with whether changes may be tried. */
export async function askForChanges(why) {
  const access = await withToken(() => get(path("console", "access")), why);
  Object.assign(known, { token: token(), access });
  if (!access.needs_token) return true;
  const given = await askToken(why);
  if (given) useToken(given);
  return Boolean(given);
}
