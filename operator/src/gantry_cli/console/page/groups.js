// The list of groups: what their status says, and a way to the console of each. `gantry console` serves it.

import { codeFromAddress, get, post, Refused, token } from "/console/js/api.js";
import { h, render } from "/console/js/dom.js";
import { count, duration, moment, plain, plural } from "/console/js/format.js";
import { badge, button, dot, empty, icon, note, table } from "/console/js/parts.js";

const REFRESH_MS = 5000;
const GOOD_PHASES = ["Ready"];

const app = document.getElementById("app");
const page = { document: null, receivedMs: 0, fault: "", needsLogin: false, words: "", onlyProblems: false, opening: null };

/** Return the tone of a group: its console or status is unavailable, something is not as it should be, or all is well. */
function toneOf(group) {
  if (group.fault || !group.phase || group.shards.some((shard) => shard.master === "" && shard.fence === "")) return "bad";
  return GOOD_PHASES.includes(group.phase) && group.conditions.length === 0 && group.shards.every((shard) => shard.is_durability_met) ? "good" : "warn";
}

const RANK = { bad: 0, warn: 1, good: 2 };

function shownGroups() {
  const words = page.words.toLowerCase();
  return (page.document?.groups ?? [])
    .filter((group) => `${group.place}/${group.name}`.toLowerCase().includes(words) && !(page.onlyProblems && toneOf(group) === "good"))
    .toSorted((a, b) => RANK[toneOf(a)] - RANK[toneOf(b)]);
}

function draw() {
  const groups = page.document?.groups ?? [];
  const shown = shownGroups();
  render(app, bar(groups), banner(),
    h("main", { id: "main", tabindex: -1, key: "main", class: page.fault ? "stale" : "" },
      h("h1", { class: "sr-only" }, "Groups"),
      page.document === null ? empty("No groups yet", page.needsLogin ? "Log in to see the groups." : "Loading…") : [
        tools(groups, shown),
        h("div", { class: "stack", key: "stack" }, shown.length > 0 ? shown.map(card) : nothing(groups)),
      ]),
    h("footer", { class: "foot", key: "foot" }, h("span", null, page.document === null ? "Gantry" : `Read ${moment(page.document.at_ms)}`), h("span", { class: "grow" }), h("span", { class: "faint" }, "/ filters, t changes the theme")));
}

function nothing(groups) {
  if (groups.length > 0) return empty("No group matches", "Change the filter, or show all groups.");
  return empty("No groups", `There are none in ${page.document.title}. Create one with a BrokerGroup manifest (kubectl apply), or with gantry up.`);
}

function bar(groups) {
  const bad = groups.filter((group) => toneOf(group) !== "good").length;
  const shown = page.document === null ? { tone: "idle", text: "Loading" } : groups.length === 0 ? { tone: "idle", text: "No groups" }
    : bad === 0 ? { tone: "good", text: groups.length === 1 ? "The group is healthy" : "All groups are healthy" } : { tone: groups.some((group) => toneOf(group) === "bad") ? "bad" : "warn", text: `${plural(bad, "group")} need${bad === 1 ? "s" : ""} attention` };
  return h("header", { class: "top", key: "top" },
    h("span", { class: "brand" }, h("b", null, "Gantry"), h("span", { class: "cluster" }, plain(page.document?.title ?? ""))),
    h("p", { class: `verdict ${shown.tone}`, role: "status", "aria-live": "polite" }, dot(shown.tone), h("span", null, shown.text)),
    h("span", { class: "grow" }),
    h("button", { type: "button", class: "tool", "aria-label": "Dark or light (t)", title: "Dark or light (t)", onclick: toggleTheme }, icon(window.gantryTheme.now() === "dark" ? "sun" : "moon")));
}

function banner() {
  if (page.needsLogin) {
    return h("div", { class: "banner warn", role: "alert", key: "banner" }, h("b", null, "Log in"), h("span", null, `${page.fault}. Use the address that gantry console prints, or start it again for a new one.`));
  }
  if (page.fault) {
    const since = duration((Date.now() - page.receivedMs) / 1000);
    return h("div", { class: "banner bad", role: "alert", key: "banner" }, h("b", null, "gantry console is not responding"), h("span", null, `${page.fault}. The data below is ${since} old. Start gantry console again if it has ended.`));
  }
  if (page.document?.fault) {
    return h("div", { class: "banner bad", role: "alert", key: "banner" }, h("b", null, "The list cannot be read"), h("span", null, `${plain(page.document.fault)}. The data below was read ${moment(page.document.at_ms)}.`));
  }
  return null;
}

const tools = (groups, shown) =>
  h("div", { class: "groups-tools", key: "tools" },
    h("input", { type: "search", class: "search", "data-search": true, "aria-label": "Filter groups", placeholder: "Filter groups", value: page.words, oninput: (event) => { page.words = event.target.value; draw(); } }),
    h("label", { class: "check" }, h("input", { type: "checkbox", checked: page.onlyProblems, onchange: (event) => { page.onlyProblems = event.target.checked; draw(); } }), "only groups that need attention"),
    h("span", { class: "faint" }, shown.length === groups.length ? plural(groups.length, "group") : `${count(shown.length)} of ${plural(groups.length, "group")}`),
    page.document.left_out > 0 ? h("span", { class: "faint" }, `${plural(page.document.left_out, "group")} not shown`) : null);

function card(group) {
  const tone = toneOf(group);
  const masters = group.shards.filter((shard) => shard.master !== "").length;
  return h("section", { class: "panel group-card", key: group.id, "data-group": group.id, "aria-label": `Group ${group.name} in ${group.place}` },
    h("header", { class: "panel-head" }, dot(tone), h("h2", null, plain(group.name)), h("span", { class: "place" }, plain(group.place)),
      badge(tone, group.phase ? plain(group.phase) : "no status"), h("span", { class: "grow" }),
      h("span", { class: "faint" }, `${plural(group.shards.length, "shard")}, ${plural(masters, "master")}`), age(group),
      button(page.opening === group.id ? "Opening…" : "Open console", () => open(group), { class: "primary", disabled: !group.can_open || page.opening !== null, "aria-label": `Open the console of ${group.name}` })),
    notes(group), shards(group));
}

function age(group) {
  if (group.observed_ms === null) return null;
  const seconds = Math.max(0, (page.document.now_ms - group.observed_ms + Date.now() - page.receivedMs) / 1000);
  const why = "The status is written when it changes, at most every 10 s.";
  return h("span", { class: "faint", title: `${moment(group.observed_ms)}. ${why}` }, `status ${duration(seconds)} old`);
}

function notes(group) {
  const found = group.conditions.map((one) =>
    h("li", { key: one.type }, note("warn", h("b", null, plain(one.type)), ` is ${plain(one.status)}: ${plain(one.reason)}${one.message ? ` (${plain(one.message)})` : ""}`)));
  const fault = group.fault ? [h("li", { key: "fault" }, h("p", { class: "note bad", role: "alert" }, plain(group.fault)))] : [];
  return fault.length + found.length === 0 ? null : h("ul", { class: "group-notes", key: "notes" }, fault, found);
}

const shards = (group) => group.shards.length === 0 ? null
  : table(`Shards of ${group.name}`, [
      { title: "Shard" }, { title: "Master" }, { title: "Epoch", class: "right" }, { title: "In-sync slaves", class: "right" }, { title: "At risk if the master's machine fails", class: "right" },
    ], group.shards.map((shard) => h("tr", { key: shard.number },
      h("td", null, shard.number, shard.fence ? [" ", badge("warn", plain(shard.fence))] : null),
      h("td", { class: "mono" }, shard.master === "" ? badge("bad", "no master") : plain(shard.master)),
      h("td", { class: "right number" }, shard.epoch || "–"),
      h("td", { class: "right number" }, count(shard.in_sync)),
      h("td", { class: "right number" }, shard.is_durability_met ? plain(shard.at_risk) : badge("warn", shard.at_risk === "unknown" ? "unknown" : `${plain(shard.at_risk)}, more than allowed`)))));

async function open(group) {
  page.opening = group.id;
  draw();
  try {
    const answer = await post("/v1/broker-groups/open", { id: group.id });
    location.assign(answer.address);
  } catch (error) {
    if (error instanceof Refused && error.status === 401) page.needsLogin = true;
    group.fault = error.message;
  }
  page.opening = null;
  draw();
}

async function refresh() {
  if (!token()) {
    page.needsLogin = true;
    page.fault ||= "This page needs a login";
    draw();
    return;
  }
  try {
    page.document = await get("/v1/broker-groups");
    page.receivedMs = Date.now();
    page.fault = "";
    page.needsLogin = false;
  } catch (error) {
    page.fault = error.message;
    page.needsLogin = error instanceof Refused && error.status === 401;
  }
  draw();
}

function toggleTheme() {
  window.gantryTheme.toggle();
  draw();
}

addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input:not([type=checkbox])") !== null;
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "t") toggleTheme();
  else if (event.key === "/") document.querySelector("[data-search]")?.focus();
  else return;
  event.preventDefault();
});

async function logIn() {
  try {
    return await codeFromAddress();
  } catch (error) {
    page.needsLogin = true;
    page.fault = error.message;
    return false;
  }
}

app.replaceChildren();
await logIn();
addEventListener("hashchange", async () => (await logIn()) && refresh());
addEventListener("pageshow", (event) => event.persisted && refresh());
await refresh();
setInterval(refresh, REFRESH_MS);
