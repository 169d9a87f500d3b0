// Names functions of the widgets' JavaScript that are too long, and modules of mathematics that need a page.
//
//     node tools/check_javascript.mjs [FOLDER]
//
// The length of a function includes everything inside it. The compiler that checks the types (node_modules) parses the
// files; its API is not stable yet, so package.json pins its version.

import { readdirSync } from "node:fs";
import { resolve } from "node:path";
import { SyntaxKind } from "typescript/unstable/ast";
import { API } from "typescript/unstable/sync";

const MOST_LINES = 120;
const FUNCTIONS = new Set([
  SyntaxKind.FunctionDeclaration,
  SyntaxKind.FunctionExpression,
  SyntaxKind.ArrowFunction,
  SyntaxKind.MethodDeclaration,
]);
// Names that exist only in a page; colors.js and format.js return texts and need none.
const OF_A_PAGE = /\b(document|window|getComputedStyle|HTMLElement)\b/;
const WITHOUT_PAGE = /^import [^;]* from "(?:\.|\.\.\/\w+)\/(?:\w+_math|colors|format)\.js";$/s;

const root = resolve(import.meta.dirname, "..");
const folder = resolve(process.argv[2] ?? `${root}/mha_course/widgets`);
const api = new API({ cwd: root });
const { program } = api.updateSnapshot({ openProject: `${root}/tsconfig.json` }).getProjects()[0];
const faults = [];
let longest = 0;

for (const file of readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(".js"))) {
  const source = program.getSourceFile(`${folder}/${file}`);
  if (!source) throw new Error(`${folder}/${file} is not among the files of tsconfig.json`);
  const lineOf = (place) => source.text.slice(0, place).split("\n").length;
  const visit = (node) => {
    if (FUNCTIONS.has(node.kind)) {
      const first = lineOf(node.getStart(source));
      const length = lineOf(node.end) - first + 1;
      longest = Math.max(longest, length);
      if (length > MOST_LINES) faults.push(`${file}:${first}: a function of ${length} lines, at most ${MOST_LINES}`);
    }
    node.forEachChild(visit);
  };
  source.forEachChild(visit);
  if (!file.endsWith("_math.js")) continue;
  for (const { pos, end } of source.statements.filter(({ kind }) => kind === SyntaxKind.ImportDeclaration)) {
    const line = source.text.slice(pos, end).trim().replace(/^(?:\/\/.*\s*|\/\*[^]*?\*\/\s*)+/, "");
    if (!WITHOUT_PAGE.test(line)) faults.push(`${file}: mathematics needs no page, but there is ${line}`);
  }
  const code = source.text.replace(/\/\*[^]*?\*\/|\/\/.*/g, "");
  if (OF_A_PAGE.test(code)) faults.push(`${file}: mathematics needs no page, but there is ${OF_A_PAGE.exec(code)?.[0]}`);
}
api.close();
console.log(faults.length > 0 ? faults.join("\n") : `The longest function has ${longest} lines, at most ${MOST_LINES} are allowed.`);
process.exitCode = faults.length > 0 ? 1 : 0;
