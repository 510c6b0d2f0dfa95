// What is changed asks first, and what is said to it, or against it, stands beside its button.

import {element, setText} from "./dom.js";

/**
 * A dialog that asks first. `fields`: [{name, label, value?, required?, options?: [[value, word]], type?}]; `confirm` is the
 * word on the button, `keep` on the one that does nothing; what is `danger` is not confirmed by Enter alone. Gives the
 * fields' values, or null.
 */
export function ask({title, text = "", fields = [], confirm = "OK", keep = "Go back", danger = false}) {
  const inputs = fields.map((field) => {
    const made = field.options
      ? element("select", {name: field.name}, field.options.map(([value, word]) => element("option", {value}, word)))
      : element("input", {name: field.name, type: field.type ?? "text", required: field.required, autocomplete: "off", maxlength: field.type ? null : 1000, min: field.min, max: field.max});
    if (field.value !== undefined) made.value = field.value;
    return element("label", {}, field.label, made);
  });
  const heading = element("h2", {id: "ask-title"}, title);
  const yes = element("button", {class: danger ? "danger" : "primary", value: "yes"}, confirm);
  const no = element("button", {type: "button", onclick: () => dialog.close()}, keep);
  const form = element("form", {method: "dialog"}, heading, text && element("p", {class: "wraps"}, text), inputs, element("p", {class: "buttons"}, no, yes));
  const dialog = element("dialog", {"aria-labelledby": "ask-title"}, form);
  document.body.append(dialog);
  const before = /** @type {HTMLElement} */ (document.activeElement);
  dialog.showModal();
  (form.querySelector("input, select") ?? (danger ? no : yes)).focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes" ? Object.fromEntries(new FormData(form)) : null);
      dialog.remove();
      before?.focus();
    });
  });
}

/**
 * Forms that act (`data-action`): with script they ask here and stay on the page; without it the server asks. A view may
 * give a form a `wording(label)`: what `ask` is to say of the button with that label; and an `undoing(name, fields)`: the
 * fields of each action that undoes one.
 * @typedef {{
 *   wording?: (label: string) => object, undoing?: (name: string, fields: object) => object[],
 * }} Wording
 */
export function forms(source) {
  document.addEventListener("submit", async (event) => {
    const form = /** @type {HTMLFormElement & Wording} */ (event.target);
    if (!form.dataset.action) return;
    event.preventDefault();
    const button = /** @type {HTMLButtonElement} */ (event.submitter);
    const {csrf, ...fields} = joined(new FormData(form, button));
    const name = button?.formAction?.includes("/actions/") ? button.formAction.split("/actions/").pop() : form.dataset.action;
    const shown = form.querySelector(".answer") ?? form.parentElement.parentElement.querySelector(".answer");
    const words = Object.entries(fields).map(([key, value]) => `${key}: ${value}`).join("\n");
    const label = button.textContent.replace("…", "");
    const asked = {title: button.dataset.title ?? form.dataset.title, text: words, confirm: label, ...form.wording?.(label)};
    if (!(await ask({...asked, danger: button.classList.contains("danger")}))) return;
    const undoing = form.undoing?.(name, fields) ?? [];
    if (await acted(source, name, fields, button, shown)) {
      for (const box of form.querySelectorAll("input[name=ids]")) box.checked = false;
      if (undoing.length) shown.append(" ", undoButton(source, name, undoing, shown));
    }
    form.dispatchEvent(new Event("reset"));
  });
}

function undoButton(source, name, undoing, shown) {
  const button = element("button", {type: "button", onclick: async () => {
    for (const fields of undoing) if (!(await acted(source, name, fields, button, shown))) return;
    setText(shown, "undone");
  }}, "Undo");
  return button;
}

/** The fields of a form; ids that are ticked are one list, as the server has it. */
function joined(data) {
  const fields = Object.fromEntries(data);
  if (fields.ids) fields.ids = data.getAll("ids").join(" ");
  return fields;
}

/** Perform an action; what is said to it, or against it, stands beside its button. Gives whether it was done. */
export async function acted(source, name, fields, button, shown) {
  button.disabled = true;
  let isDone = true;
  try {
    setText(shown, await source.act(name, fields));
  } catch (error) {
    isDone = false;
    setText(shown, error.message);
  }
  shown.classList.toggle("failed", !isDone);
  button.disabled = false;
  return isDone;
}
