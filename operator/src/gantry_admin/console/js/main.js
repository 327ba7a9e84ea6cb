// The frame around the views: the top bar, navigation, the banner while the sidecar is unreachable, keyboard shortcuts,
// and the announcements for screen readers.

import { enterToken } from "./access.js";
import { accountsView } from "./accounts.js";
import { codeFromAddress, token, tokenFromAddress } from "./api.js";
import { clientsView } from "./clients.js";
import { draw as drawDialog, isOpen, show, close } from "./dialogs.js";
import { h, render } from "./dom.js";
import { duration, moment, plain, zoneName } from "./format.js";
import { lettersView } from "./letters.js";
import { messageView } from "./message.js";
import { messagesView } from "./messages.js";
import { headline, shardsOf } from "./model.js";
import { overview } from "./overview.js";
import { button, dot, icon } from "./parts.js";
import { go, currentView, VIEWS } from "./router.js";
import { groupsPage } from "./server.js";
import { searchView } from "./search.js";
import { changed, refreshNow, onChange, state, wantTables, watch } from "./store.js";
import { tailView } from "./tail.js";
import { groupsView, topicsView } from "./topics.js";

const BODIES = { overview, topics: topicsView, groups: groupsView, messages: messagesView, letters: lettersView, message: messageView, clients: clientsView, search: searchView, tail: tailView, accounts: accountsView };
const KEYS = [
  ["1 – 8", "go to a view"], ["/", "filter, or the first field"], ["t", "dark or light"], ["k", "enter a token"],
  ["?", "this help"], ["Esc", "close, or leave a chart"], ["← →", "move in a chart that has the focus"],
];

const app = document.getElementById("app");

function draw() {
  const view = currentView();
  const { group } = state;
  const shards = group === null ? [] : shardsOf(group);
  wantTables(view.name !== "overview");
  document.title = `${titleOf(view)} · ${clusterOf(group) ?? "Gantry console"}`;
  render(app,
    bar(group, shards),
    h("nav", { class: "nav", "aria-label": "Views", key: "nav" }, VIEWS.map((one) =>
      h("a", { key: one.name, href: `#/${one.name}`, "aria-current": one.name === (view.parent ?? view.name) ? "page" : null, "aria-label": nameOf(one) }, one.title, lettersCount(one.name)))),
    banner(),
    h("main", { id: "main", tabindex: -1, key: `main-${view.name}`, class: state.connection === "lost" ? "stale" : "" }, BODIES[view.name]()),
    h("footer", { class: "foot", key: "foot" }, h("span", null, footWords(group)), h("span", { class: "grow" }), h("span", { class: "faint" }, `times in ${zoneName()}`), h("span", { class: "faint" }, "press ? for keys")));
  drawDialog();
}

const deadLetters = () => (state.groups?.groups ?? []).reduce((sum, group) => sum + group.dead_letters, 0);

const nameOf = (view) => (view.name === "letters" && deadLetters() > 0 ? `${view.title}, ${deadLetters()}` : view.title);

function lettersCount(name) {
  const number = name === "letters" ? deadLetters() : 0;
  return number > 0 ? h("span", { class: "nav-count" }, number > 999 ? "999+" : number) : null;
}

/** Return the title of a view, with the name of the thing that its address names. */
function titleOf(view) {
  const named = ["topic", "group"].map((name) => view.parameters.get(name)).find((name) => name);
  return named ? `${view.title}: ${plain(named)}` : view.title;
}

const clusterOf = (group) => group?.members.map((member) => member.status?.reported_role?.cluster).find((name) => name) ?? null;

function footWords(group) {
  const version = group?.members.find((member) => member.is_self)?.status?.sidecar.version;
  return version === undefined ? "Gantry" : `Gantry ${version}`;
}

function bar(group, shards) {
  const verdict = group === null ? { tone: "idle", text: "Loading status" } : headline(group, shards);
  const shown = state.connection === "lost" ? { tone: "bad", text: "The sidecar is not responding" } : state.connection === "refused" ? { tone: "warn", text: "Token required" } : verdict;
  return h("header", { class: "top", key: "top" },
    h("a", { class: "brand", href: "#/overview" }, h("svg", { class: "mark", viewBox: "0 0 32 32", width: 26, height: 26, "aria-hidden": "true" },
      h("rect", { class: "mark-back", width: 32, height: 32, rx: 7 }), h("path", { class: "mark-frame", d: "M5 10h22M8 10v14M24 10v14M13 10v5" }), h("rect", { class: "mark-load", x: 10, y: 15, width: 6, height: 6, rx: 1.4 })),
      h("b", null, "Gantry"), h("span", { class: "cluster" }, clusterOf(group) ?? "")),
    groupsPage === null ? null : h("a", { class: "button", key: "groups-page", href: groupsPage.url, title: groupsPage.group }, "All groups"),
    h("p", { class: `verdict ${shown.tone}`, role: "status", "aria-live": "polite" }, dot(shown.tone, shown.tone === "good"), h("span", null, shown.text)),
    h("span", { class: "grow" }),
    h("span", { class: `pulse ${state.connection}`, title: pulseTitle(), "data-connection": state.connection }, dot({ live: "good", polling: "warn", lost: "bad", refused: "warn" }[state.connection] ?? "idle", state.connection === "live"), state.connection),
    tool("key", token() ? "Token: change or remove (k)" : "Enter a token (k)", enterToken, token() ? "has" : ""),
    tool(window.gantryTheme.now() === "dark" ? "sun" : "moon", "Dark or light (t)", toggleTheme),
    tool("help", "Keys (?)", help));
}

const pulseTitle = () =>
  ({ live: "Offsets of this broker are updated live", polling: "No event stream; polling every second", lost: "The sidecar is not responding", refused: "The sidecar requires a token" })[state.connection] ?? "";

const tool = (name, label, onclick, more = "") => h("button", { type: "button", class: `tool ${more}`, "aria-label": label, title: label, onclick, key: label.split(" ")[0] }, icon(name));

function banner() {
  if (state.connection === "lost") {
    const since = duration((Date.now() - state.sinceMs) / 1000);
    return h("div", { class: "banner bad", role: "alert", key: "banner" }, h("b", null, "This page's sidecar is not responding"), h("span", null, `since ${moment(state.sinceMs)} (${since}). The data below is the last that was received. Retrying every second.`));
  }
  if (state.notice !== null) {
    return h("div", { class: "banner warn", role: "alert", key: "banner" }, h("b", null, "Login code rejected"), h("span", null, state.notice), button("Enter a token", enterToken, { class: "primary" }));
  }
  if (state.connection === "refused") {
    return h("div", { class: "banner warn", role: "alert", key: "banner" }, h("b", null, "The sidecar requires a token"), h("span", null, state.fault ?? ""), button("Enter a token", enterToken, { class: "primary" }));
  }
  return null;
}

function toggleTheme() {
  window.gantryTheme.toggle();
  changed();
}

const help = () =>
  show("help", () => ({
    title: "Keys",
    body: h("dl", { class: "keys" }, KEYS.map(([key, what]) => h("div", { key }, h("dt", null, h("kbd", null, key)), h("dd", null, what)))),
    actions: [button("Close", close, { autofocus: true })],
  }));

addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input:not([type=radio]):not([type=checkbox]), select, textarea") !== null;
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || isOpen()) return;
  const view = VIEWS.find((one) => one.key === event.key);
  const act = { "?": help, t: toggleTheme, k: enterToken, "/": focusField }[event.key] ?? (view ? () => go(view.name) : null);
  if (act === null) return;
  event.preventDefault();
  act();
});

const focusField = () => document.querySelector("main [data-search], main input.mono, main select")?.focus();

/** Use the code in the address, if there is one. For a used or expired code, show the reason and the remedy. */
async function logInWithCode() {
  try {
    return await codeFromAddress();
  } catch (error) {
    state.notice = error.message;
    return false;
  }
}

app.replaceChildren();
tokenFromAddress();
await logInWithCode();
addEventListener("hashchange", async () => ((await logInWithCode()) || tokenFromAddress()) && refreshNow()); // pasted into an open page
onChange(draw);
draw();
watch();
setInterval(() => state.connection === "lost" && changed(), 1000);
