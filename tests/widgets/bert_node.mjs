// Runs the page's BERT in Node: reads {content, texts} and writes, for each text, its pieces, final tokens and maps.
import { readFileSync } from "node:fs";

const { BERT, bytesFromUnits, readWithBert, textPieces, unpackBert } = await import(process.argv[2]);
const { content, texts, isWorker } = JSON.parse(readFileSync(0, "utf8"));
const bytes = (name) => bytesFromUnits(content[name], content.sizes[name]).buffer;
const pieces = new TextDecoder().decode(bytes("pieces")).split("\n");
const numbers = new Map(pieces.map((piece, number) => [piece, number]));
const rows = new Map(Array.from(new Uint16Array(bytes("kept")), (number, row) => [number, row]));
const stored = { ...content, int8: new Int8Array(bytes("int8")), float32: Float64Array.from(new Float32Array(bytes("float32"))) };
// In a worker there is nothing but the texts of these functions.
const program = `${BERT.map(String).join("\n")}\nreturn { unpackBert, readWithBert };`;
const own = isWorker ? new Function(program)() : { unpackBert, readWithBert };
const model = own.unpackBert(stored);
const found = texts.map((text) => {
  const all = textPieces(text, numbers);
  const tokens = all.map((piece) => rows.get(numbers.get(piece)));
  if (content.onlyPieces || tokens.includes(undefined)) return { pieces: all };
  const start = performance.now();
  const { final, maps } = own.readWithBert(model, tokens);
  const plain = (matrix) => matrix.map((row) => Array.from(row));
  return { pieces: all, milliseconds: performance.now() - start, final: plain(final), maps: maps.map((heads) => heads.map(plain)) };
});
process.stdout.write(JSON.stringify(found));
