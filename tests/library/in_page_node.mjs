// The page's Python without a page: Pyodide in Node.js, with the stand-in for torch and its kernels.
// node in_page_node.mjs ROOT, with a program on stdin; what the program leaves in `result` is printed as JSON.

import { readdirSync, readFileSync, statSync } from "node:fs";

const root = process.argv[2];
const { loadPyodide } = await import(`${root}/node_modules/pyodide/pyodide.mjs`);
const { createKernels } = await import(`${root}/mha_course/in_page/kernels.js`);
const python = await loadPyodide({ jsglobals: {} });

const copy = (from, to) => {
  if (statSync(from).isDirectory()) {
    python.FS.mkdirTree(to);
    for (const name of readdirSync(from)) if (name !== "__pycache__") copy(`${from}/${name}`, `${to}/${name}`);
  } else python.FS.writeFile(to, readFileSync(from));
};
copy(`${root}/mha_course/in_page/torch`, "torch");
python.FS.mkdirTree("mha_course");
for (const name of ["__init__", "built"]) copy(`${root}/mha_course/${name}.py`, `mha_course/${name}.py`);
python.registerJsModule("mha_kernels", createKernels(python._module));
python.runPython(readFileSync(0, "utf8"));
console.log(python.runPython("import json; json.dumps(result)"));
