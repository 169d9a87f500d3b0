// A field for the text of a setting, with a remark below it.

import { element } from "./frame.js";

/**
 * Only a valid text reaches the model. For any other, the remark says what is wrong, and the model keeps the last
 * valid text, which returns to the field when the reader leaves it.
 * @param {import("./frame.js").Frame} frame @param {string} name @param {string} setting
 * @param {(text: string) => {problem: string, remark: string}} judge
 * @param {(text: string) => void} onText receives a valid text
 */
export function textField(frame, name, setting, judge, onText) {
  const input = element("input", {
    type: "text",
    autocapitalize: "none",
    autocomplete: "off",
    spellcheck: "false",
    enterkeyhint: "done",
  });
  const remark = element("p", { class: "mha-hint mha-remark" });
  const label = element("label", { class: "mha-row" }, element("span", { class: "mha-name", text: name }), input);
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
  frame.listen(input, "change", () => {
    if (show() === "") return;
    input.value = frame.get(setting);
    show();
  });
  /** @param {string} text that the field already contains while the reader types */
  function draw(text) {
    if (input.value !== text) input.value = text;
    show();
  }
  return { nodes: [label, remark], draw };
}
