// Runs the page's BERT in Node: reads {content, texts} and writes, for each text, its pieces, final tokens and maps.
import { readFileSync } from "node:fs";

const { BERT, bertBlocks, readPieces, textPieces, unpackBert, unpackVocabulary } = await import(process.argv[2]);
const { content, texts, isWorker, onlyPieces } = JSON.parse(readFileSync(0, "utf8"));
const vocabulary = unpackVocabulary(content);
// In a worker there is nothing but the texts of these functions.
const program = `${BERT.map(String).join("\n")}\nreturn { unpackBert, bertBlocks };`;
const own = isWorker ? new Function(program)() : { unpackBert, bertBlocks };
const plain = (matrix) => matrix.map((row) => Array.from(row));
const startUnpacking = performance.now();
const model = onlyPieces ? null : own.unpackBert(content);
const unpacking = performance.now() - startUnpacking;
const found = texts.map((text) => {
  if (onlyPieces) return { pieces: textPieces(text, vocabulary.numbers) };
  const read = readPieces(text, vocabulary);
  const start = performance.now();
  const blocks = [...own.bertBlocks(model, read.tokens)];
  const milliseconds = performance.now() - start;
  const maps = blocks.map(({ weights }) => weights.map(plain));
  return { ...read, milliseconds, unpacking, final: plain(blocks[blocks.length - 1].x), maps };
});
process.stdout.write(JSON.stringify(found));
