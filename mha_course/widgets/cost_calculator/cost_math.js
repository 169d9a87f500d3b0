// The cost of attention layers without biases, and how many users fit in memory. Pure functions of the sizes; a
// test compares them with torch's counts.

const CURVE_STEPS = 16;

/**
 * @typedef {object} AttentionSizes
 * @property {number} embedDim
 * @property {number} numHeads
 * @property {number} numKvHeads
 * @property {number} length
 * @property {number} batchSize
 * @property {number} numLayers
 * @property {number} bytesPerNumber
 */

/** @param {AttentionSizes} sizes */
export function attentionCost({ embedDim, numHeads, numKvHeads, length, batchSize, numLayers, bytesPerNumber }) {
  const kvDim = (numKvHeads * embedDim) / numHeads;
  // Queries and output are as wide as the model; keys and values are as wide as all key/value heads together.
  const parameters = numLayers * (2 * embedDim * embedDim + 2 * embedDim * kvDim);
  const tokens = batchSize * length;
  return {
    parameters,
    // Each multiply-add counts as two operations.
    projectionFlops: 2 * tokens * parameters,
    // Scores and output each take length · embed_dim products per query, for any number of heads.
    attentionFlops: numLayers * 4 * tokens * length * embedDim,
    weightsBytes: numLayers * tokens * numHeads * length * bytesPerNumber,
    cacheBytes: numLayers * 2 * tokens * kvDim * bytesPerNumber,
  };
}

const MILLION = 1e6;
const GIGA = 1e9;

/**
 * The contents of the memory, in bytes, and the number of users whose caches fit in the rest.
 * @param {AttentionSizes & {otherMillions: number, memoryGb: number, scoreTable: boolean}} sizes
 */
export function memoryUse({ otherMillions, memoryGb, scoreTable, ...sizes }) {
  const { parameters, cacheBytes } = attentionCost({ ...sizes, batchSize: 1 });
  const { numHeads, length, bytesPerNumber } = sizes;
  const allParameters = parameters + MILLION * otherMillions;
  const modelBytes = allParameters * bytesPerNumber;
  // One table is enough, because the layers run one after another and prompts are read one at a time.
  const scoresBytes = scoreTable ? numHeads * length * length * bytesPerNumber : 0;
  const memoryBytes = memoryGb * GIGA;
  const room = memoryBytes - modelBytes - scoresBytes;
  const users = Math.max(0, Math.floor(room / cacheBytes));
  return { allParameters, modelBytes, scoresBytes, userBytes: cacheBytes, memoryBytes, room, users };
}

/**
 * The length at which scores and values cost as much as the projections.
 * @param {{embedDim: number, numHeads: number, numKvHeads: number}} sizes
 */
export function crossingLength({ embedDim, numHeads, numKvHeads }) {
  return embedDim + (numKvHeads * embedDim) / numHeads;
}

/** @param {number} whole @param {number} most @returns {number[]} its divisors up to `most`, in order */
export function divisorsUpTo(whole, most) {
  return Array.from({ length: Math.min(whole, most) }, (_, index) => index + 1).filter((n) => whole % n === 0);
}

/**
 * Everything that the widget shows.
 * @param {AttentionSizes & {sweep: string, otherMillions: number, memoryGb: number, scoreTable: boolean}} state
 */
export function computeCost(state) {
  const { embedDim, numHeads, numKvHeads, length, sweep } = state;
  const ofHeads = sweep === "num_heads";
  const counts = barCounts(ofHeads ? embedDim : numHeads, ofHeads ? [numHeads] : [numHeads, numKvHeads]);
  const swept = counts.map((count) =>
    attentionCost(ofHeads ? { ...state, numHeads: count, numKvHeads: count } : { ...state, numKvHeads: count }),
  );
  const crossing = crossingLength(state);
  const stride = Math.ceil(Math.max(2 * crossing, Math.floor((length * 5) / 4)) / CURVE_STEPS);
  const lengths = Array.from({ length: CURVE_STEPS + 1 }, (_, step) => stride * step);
  const curves = lengths.map((tokens) => attentionCost({ ...state, length: tokens }));
  return {
    memory: memoryUse(state),
    cost: attentionCost(state),
    counts,
    now: counts.indexOf(ofHeads ? numHeads : numKvHeads),
    swept: {
      parameters: swept.map(({ parameters }) => parameters),
      flops: swept.map(({ projectionFlops, attentionFlops }) => projectionFlops + attentionFlops),
      cache: swept.map(({ cacheBytes }) => cacheBytes),
      weights: swept.map(({ weightsBytes }) => weightsBytes),
    },
    crossing,
    lengths,
    projectionCurve: curves.map(({ projectionFlops }) => projectionFlops),
    attentionCurve: curves.map(({ attentionFlops }) => attentionFlops),
  };
}

/**
 * The numbers of heads that get a bar: the powers of two up to 64 that divide `whole`, and the current ones.
 * @param {number} whole @param {number[]} always
 */
function barCounts(whole, always) {
  const powers = Array.from({ length: 7 }, (_, power) => 2 ** power).filter((count) => whole % count === 0);
  return [...new Set([...powers, ...always])].sort((a, b) => a - b);
}
