// Authentication: if the sidecar refuses a request because of a missing or unknown token, the user is asked for one, and
// the request is retried once.

import { Refused, setToken, token } from "./api.js";
import { askToken } from "./dialogs.js";
import { changed, refreshNow, state } from "./store.js";

/** Return the result of `work`, after asking for a token if it requires one. Raises what `work` raises. */
export async function withToken(work, why) {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 401) throw error;
    const given = await askToken(`${why} The sidecar answered: ${error.message}.`);
    if (!given) throw error;
    setToken(given);
    refreshNow();
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
