// Typesets equations with MathJax, without a browser. Reads a list of pairs [TeX, whether displayed] from stdin
// and writes { equations: [HTML, ...], style: CSS } to stdout. The first argument is MathJax's folder, the
// second is the address of its fonts.
const { readFileSync } = require("node:fs");

const [folder, fonts] = process.argv.slice(2);

async function main() {
  const MathJax = await require(`${folder}/node-main.js`).init({
    loader: { paths: { mathjax: folder }, load: ["input/tex", "output/chtml", "adaptors/liteDOM"] },
    chtml: { fontURL: fonts },
  });
  const { adaptor } = MathJax.startup;
  const equations = [];
  for (const [tex, display] of JSON.parse(readFileSync(0, "utf8"))) {
    const node = await MathJax.tex2chtmlPromise(tex, { display });
    const mathml = MathJax.tex2mml(tex, { display }).replace(/\n\s*/g, "");
    // By default, MathJax only prints an unknown command in red.
    const error = mathml.match(/data-mjx-error="([^"]*)"|<mtext mathcolor="red">([^<]*)/);
    if (error) throw new Error(`MathJax cannot set ${tex}: ${error[1] ?? error[2]}`);
    // As in a browser, MathJax writes glyphs to be seen and MathML for screen readers.
    adaptor.setAttribute(adaptor.firstChild(node), "aria-hidden", "true");
    const spoken = `<mjx-assistive-mml unselectable="on" display="${display ? "block" : "inline"}">${mathml}</mjx-assistive-mml>`;
    equations.push(adaptor.outerHTML(node).replace(/<\/mjx-container>$/, () => `${spoken}</mjx-container>`));
  }
  const style = adaptor.textContent(MathJax.chtmlStylesheet());
  process.stdout.write(JSON.stringify({ equations, style }));
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
