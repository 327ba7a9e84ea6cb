// The dialog of every change: first its form, then the preview with each value before and after, then the outcome.
//
// The sidecar executes exactly what it has previewed, once; it refuses a change whose premises have changed meanwhile.

import { askForChanges, changeFault } from "./access.js";
import { path, post } from "./api.js";
import { close, show } from "./dialogs.js";
import { h } from "./dom.js";
import { plain } from "./format.js";
import { badge, button, note, table } from "./parts.js";
import { changed, refreshNow } from "./store.js";

const WHY = "Changes require a token that permits them.";

/** Show the dialog of a change. `form()` returns its fields, and `bodyOf()` the body of the request for its preview. */
export async function changeDialog(title, form, bodyOf) {
  if (!(await askForChanges(WHY).catch(() => true))) return null; // another error is shown by the preview
  const stage = { name: "form", preview: null, result: null, fault: null, typed: "", isBusy: false };

  const work = async (send, then) => {
    Object.assign(stage, { isBusy: true, fault: null });
    changed();
    try {
      then(await send());
    } catch (error) {
      stage.fault = error.message;
    }
    stage.isBusy = false;
    changed();
  };
  const preview = (event) => {
    event?.preventDefault();
    work(() => post(path("changes", "preview"), bodyOf()), (found) => Object.assign(stage, { name: "preview", preview: found }));
  };
  const apply = () =>
    work(() => post(path("changes"), { token: stage.preview.token, name: stage.typed }), (found) => {
      Object.assign(stage, { name: "done", result: found });
      refreshNow();
    });

  const views = {
    form: () => ({
      body: h("form", { key: "form", onsubmit: preview, class: "change-form" }, form(), h("button", { type: "submit", hidden: true })),
      actions: [button("Cancel", () => close(null)), button("Preview", preview, { class: "primary", disabled: stage.isBusy || changeFault() !== "", title: changeFault() || null })],
    }),
    preview: () => ({
      body: [
        stage.preview.warnings.map((text) => note("warn", plain(text))),
        stage.preview.rows.length === 0 ? note("plain", "Nothing would change.") : rowsTable(stage.preview.rows),
        stage.preview.needs_name ? h("label", { class: "field" }, h("span", null, `Type ${stage.preview.name} to confirm`),
          h("input", { class: "mono", name: "confirm-name", autocomplete: "off", spellcheck: "false", value: stage.typed, oninput: (event) => { stage.typed = event.target.value; changed(); } })) : null,
      ],
      actions: [
        button("Back", () => { Object.assign(stage, { name: "form", fault: null, typed: "" }); changed(); }),
        button("Apply", apply, { class: "primary", disabled: stage.isBusy || stage.preview.rows.length === 0 || (stage.preview.needs_name && stage.typed !== stage.preview.name) }),
      ],
    }),
    done: () => ({
      body: [
        note(stage.result.is_done ? "good" : "bad", stage.result.is_done ? "Changed." : "Not everything was changed."),
        table("Outcomes", [{ title: "Place" }, { title: "Outcome" }], stage.result.steps.map((step) => h("tr", { key: step.place },
          h("td", { class: "mono" }, plain(step.place)), h("td", null, badge(step.is_done ? "good" : "bad", step.is_done ? "done" : "failed"), step.reason === "" ? null : ` ${plain(step.reason)}`)))),
      ],
      actions: [button("Close", () => close(true), { class: "primary" })],
    }),
  };
  return show("details change", () => {
    const { body, actions } = views[stage.name]();
    const fault = stage.fault ?? (stage.name === "form" && changeFault() !== "" ? changeFault() : null);
    return { title, body: [fault === null ? null : h("div", { role: "alert", key: "fault" }, note("bad", plain(fault))), body], actions };
  });
}

const rowsTable = (rows) =>
  table("Changes", [{ title: "Place" }, { title: "Setting" }, { title: "Before" }, { title: "After" }, { title: "Effect" }], rows.map((row) =>
    h("tr", { key: `${row.place}/${row.setting}` }, h("td", { class: "mono" }, plain(row.place)), h("td", null, row.setting),
      h("td", { class: "number" }, row.before ?? "–"), h("td", { class: "number" }, row.after ?? "deleted"), h("td", null, plain(row.effect)))));

/** Return a labelled field whose value is kept in `values[name]`. */
export const textField = (values, name, title, props = {}) =>
  h("label", { class: "field", key: name }, h("span", null, title),
    h("input", { ...props, name, class: "mono", autocomplete: "off", spellcheck: "false", value: values[name], oninput: (event) => (values[name] = event.target.value) }));

/** Return a labelled choice, whose value is kept in `values[name]`; `choices` are pairs of value and text. */
export const choiceField = (values, name, title, choices) =>
  h("label", { class: "field", key: name }, h("span", null, title),
    h("select", { name, onchange: (event) => { values[name] = event.target.value; changed(); } }, choices.map(([value, text]) =>
      h("option", { key: value, value, selected: values[name] === value }, text))));
