// Reads a typed text as a number or a shape, and says how a wrong one differs from the answer.

import { countOf } from "../shared/format.js";

/** @typedef {number | number[]} Value a number, or the sizes of a shape */

/**
 * A question as Python declares it. `tolerance` is relative; `percent` says whether a % sign is the unit, means a
 * hundredth, or cannot be read. `shown` is the answer as the page writes it.
 * @typedef {object} Question
 * @property {string} text
 * @property {boolean} is_shape
 * @property {Value} answer
 * @property {string} shown
 * @property {string} unit
 * @property {number} tolerance
 * @property {"unit" | "share" | "none"} percent
 * @property {[Value, string][]} known wrong answers, each with its cause
 * @property {string[]} hints
 * @property {string} solution
 */

/** @typedef {{value: Value} | {problem: string}} Reading a value, or a sentence that says what is expected */

/** Examples of valid texts, for the sentences that ask for one. */
export const EXPECTED = {
  number: "a number, such as 0.25, 1/4, 1e-3, 12,288 or 2^10",
  shape: "the sizes of all axes, such as (2, 3, 5) or 2 × 3 × 5",
};

// Groups of three digits have one kind of separator, and a group after a leading 0 would be decimals: 0,333.
const GROUPED = String.raw`[1-9]\d{0,2}(?:(?: \d{3})+|(?:,\d{3})+|(?:_\d{3})+)`;
const PLAIN = String.raw`(?:(?:${GROUPED}|\d+)(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?`;
const FACTOR = new RegExp(String.raw`^(${PLAIN})(?: ?\^ ?(?:([+-]?${PLAIN})|\( ?([+-]?${PLAIN}) ?\)))? ?`);
const DECIMAL_COMMA = /^[+-]?\d+,\d+ ?%?$/;

/**
 * Normalises signs and spaces that can be typed in several ways: minus, times, powers, repeated spaces.
 * @param {string} text
 */
function normalise(text) {
  const one = text.toLowerCase().replace(/[−–]/g, "-").replace(/÷|⁄/g, "/");
  return one.replace(/\*\*/g, "^").replace(/[×·⋅]/g, "*").replace(/\s+/g, " ").trim();
}

/** @param {string} text one number, without a sign */
const toNumber = (text) => Number(text.replace(/[ ,_]/g, ""));

/**
 * A power. Whole exponents use multiplication, because `Math.pow(10, -5)` is not 1e-5 in every browser.
 * @param {number} base @param {number} exponent
 */
function power(base, exponent) {
  if (!Number.isInteger(exponent) || Math.abs(exponent) > 1100) return base ** exponent;
  let product = 1;
  for (let i = 0; i < Math.abs(exponent); i++) product *= base;
  return exponent < 0 ? 1 / product : product;
}

/**
 * The value of a product or quotient of numbers and powers, such as 3 * 2^10 / 7.
 * @param {string} text normalised
 * @returns {number} NaN if the text is anything else
 */
function evaluate(text) {
  const sign = text[0] === "-" ? -1 : 1;
  let rest = text.replace(/^[+-] ?/, "");
  let [value, operator] = [sign, "*"];
  for (;;) {
    const found = FACTOR.exec(rest);
    if (!found) return NaN;
    const [all, base, bare, inBrackets] = found;
    const exponent = bare ?? inBrackets;
    const raised = /^-/.test(exponent ?? "") ? -1 : 1;
    const factor = exponent === undefined ? toNumber(base) : power(toNumber(base), raised * toNumber(exponent.replace(/^[+-]/, "")));
    value = operator === "/" ? value / factor : value * factor;
    rest = rest.slice(all.length);
    if (rest === "") return value;
    // An x without a space after it may belong to a hexadecimal number.
    const next = /^([*/]|x(?= )) ?/.exec(rest);
    if (!next) return NaN;
    operator = next[1];
    rest = rest.slice(next[0].length);
  }
}

/** @param {string} text @param {{unit?: string, percent?: Question["percent"]}} [how] @returns {Reading} */
export function readNumber(text, { unit = "", percent = "none" } = {}) {
  let rest = normalise(text);
  if (rest === "") return { problem: `Type an answer first: ${EXPECTED.number}.` };
  if (unit && rest.endsWith(normalise(unit))) rest = rest.slice(0, -normalise(unit).length).trim();
  if (DECIMAL_COMMA.test(rest) && Number.isNaN(evaluate(rest.replace(/ ?%$/, "")))) {
    return { problem: "Write a decimal point in place of the comma, which separates groups of three digits here." };
  }
  const isPercent = rest.endsWith("%");
  if (isPercent && percent !== "share") return { problem: "A % sign can be misread here. Write the number without it." };
  if (isPercent) rest = rest.slice(0, -1).trim();
  const value = evaluate(rest) / (isPercent ? 100 : 1);
  if (!Number.isFinite(value)) return { problem: `That cannot be read as a number. Type ${EXPECTED.number}.` };
  return { value: value === 0 ? 0 : value };
}

/** @param {string} text @returns {Reading} */
export function readShape(text) {
  const typed = normalise(text);
  if (typed === "") return { problem: `Type an answer first: ${EXPECTED.shape}.` };
  let rest = typed.replace(/^(torch\.)?size ?(?=\()/, "");
  for (let pair = /^(?:\((.*)\)|\[(.*)\])$/.exec(rest); pair; pair = /^(?:\((.*)\)|\[(.*)\])$/.exec(rest)) {
    rest = (pair[1] ?? pair[2]).trim();
  }
  if (rest === "") return { value: [] };
  const sizes = rest.includes(",") ? rest.replace(/,$/, "").split(",") : rest.split(/[x*]/);
  const value = sizes.map((size) => (/^ ?\d+ ?$/.test(size) ? Number(size) : NaN));
  if (value.every(Number.isSafeInteger)) return { value };
  return { problem: `That cannot be read as a shape. Type ${EXPECTED.shape}.` };
}

/** @param {Question} question @param {string} text @returns {Reading} */
export function readAnswer(question, text) {
  return question.is_shape ? readShape(text) : readNumber(text, question);
}

/**
 * The distance between two values in tolerances; up to 1, they count as equal.
 * @param {Value} value @param {Value} other @param {number} tolerance relative to the other
 */
function distance(value, other, tolerance) {
  if (typeof value === "number" && typeof other === "number") {
    if (value === other) return 0;
    // Allow a little more, so that 0.33 is within 10 % of 0.3.
    return Math.abs(value - other) / (Math.abs(other) * tolerance * (1 + 1e-9));
  }
  return String(value) === String(other) ? 0 : Infinity;
}

/**
 * How a shape differs from the correct one, without giving the correct sizes away.
 * @param {number[]} value @param {number[]} answer
 */
function compareShapes(value, answer) {
  const axes = countOf(value.length, "1 axis", "# axes");
  if (value.length < answer.length) return `Your shape has ${axes}; the right one has more.`;
  if (value.length > answer.length) return `Your shape has ${axes}; the right one has fewer.`;
  const sorted = (/** @type {number[]} */ sizes) => String([...sizes].sort((a, b) => a - b));
  if (sorted(value) === sorted(answer)) return "All sizes are right, but their order is not.";
  const wrong = value.map((_, axis) => axis).filter((axis) => value[axis] !== answer[axis]);
  const [others, last] = [wrong.slice(0, -1).join(", "), wrong.at(-1)];
  if (wrong.length === 1) return `The number of axes is right. Counted from 0, axis ${last} is not.`;
  return `The number of axes is right. Counted from 0, axes ${others} and ${last} are not.`;
}

/**
 * @param {Question} question @param {Value} value
 * @returns {{isRight: boolean, why: string}} for a wrong value, the author's sentence or, without one, how it differs
 */
export function judge(question, value) {
  const { answer, tolerance, known } = question;
  if (distance(value, answer, tolerance) <= 1) return { isRight: true, why: "" };
  const distances = known.map(([wrong]) => distance(value, wrong, tolerance));
  const nearest = distances.indexOf(Math.min(...distances));
  if (distances[nearest] <= 1) return { isRight: false, why: known[nearest][1] };
  if (Array.isArray(answer)) return { isRight: false, why: compareShapes(/** @type {number[]} */ (value), answer) };
  return { isRight: false, why: Number(value) > answer ? "Your number is too large." : "Your number is too small." };
}
