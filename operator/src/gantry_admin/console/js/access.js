// Who may: a question or an order that the sidecar refuses for want of a token asks for one, and is tried again once.

import { Refused, setToken } from "./api.js";
import { askToken } from "./dialogs.js";
import { hurry } from "./store.js";

/** What `work` gives, after a token was asked for if it needs one. Raises what `work` raises. */
export async function withToken(work, why) {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 401) throw error;
    const given = await askToken(`${why} The sidecar says: ${error.message}.`);
    if (!given) throw error;
    setToken(given);
    hurry();
    return work();
  }
}
