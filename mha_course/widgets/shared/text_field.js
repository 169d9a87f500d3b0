// A field for the text of a setting, with a remark below it.

import { element } from "./frame.js";

/**
 * Only a valid text reaches the model. For any other, the remark says what is wrong, and the model keeps the last
 * valid text, which returns to the field when the reader leaves it. A long field keeps what was typed until a reset.
 * @param {import("./frame.js").Frame} frame @param {string} name @param {string} setting
 * @param {(text: string) => {problem: string, remark: string}} judge
 * @param {(text: string) => void} onText receives a valid text
 * @param {boolean} [isLong] whether the text may have several lines
 */
export function textField(frame, name, setting, judge, onText, isLong = false) {
  const input = element(isLong ? "textarea" : "input", {
    type: isLong ? null : "text",
    rows: isLong ? 5 : null,
    autocapitalize: "none",
    autocomplete: "off",
    spellcheck: "false",
    enterkeyhint: isLong ? null : "done",
  });
  const remark = element("p", { class: "mha-hint mha-remark" });
  const label = element("label", { class: "mha-row mha-text-field" }, element("span", { class: "mha-name", text: name }), input);
  const show = () => {
    const found = judge(input.value);
    input.setAttribute("aria-invalid", String(found.problem !== ""));
    remark.classList.toggle("mha-problem", found.problem !== "");
    remark.textContent = found.problem || found.remark;
    return found.problem;
  };
  frame.listen(input, "input", () => {
    const problem = show();
    if (problem) frame.say(problem);
    else onText(input.value);
  });
  const restore = () => {
    input.value = frame.get(setting);
    show();
  };
  frame.listen(input, "change", () => !isLong && show() && restore());
  frame.listen(/** @type {HTMLElement} */ (frame.body.parentElement), "click", (event) => event.target.closest(".mha-reset") && restore());
  let drawn = "";
  /** @param {string} text that the field already contains while the reader types */
  function draw(text) {
    if (text !== drawn && text !== input.value) input.value = text;
    drawn = text;
    show();
  }
  return { nodes: [label, remark], draw };
}

/**
 * A box for a text that a model writes. It scrolls and can take the focus, so the keyboard can reach all of it.
 * @param {string} label @param {...Node} parts
 */
export function textBox(label, ...parts) {
  return element("div", { class: "mha-text-box", tabindex: 0, role: "group", "aria-label": label }, element("p", {}, ...parts));
}
