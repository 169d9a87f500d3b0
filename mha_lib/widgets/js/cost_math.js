// What attention layers without biases cost. Pure functions of the sizes; a test holds them against torch's own count.

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

/**
 * @param {AttentionSizes} sizes
 */
export function attentionCost({ embedDim, numHeads, numKvHeads, length, batchSize, numLayers, bytesPerNumber }) {
  const kvDim = (numKvHeads * embedDim) / numHeads;
  // Queries and output are as wide as the model, keys and values as their heads are together.
  const parameters = numLayers * (2 * embedDim * embedDim + 2 * embedDim * kvDim);
  const tokens = batchSize * length;
  return {
    parameters,
    // Two operations for each multiply and add.
    projectionFlops: 2 * tokens * parameters,
    // Scores and values: length · embed_dim products each for every query, however the width is cut.
    attentionFlops: numLayers * 4 * tokens * length * embedDim,
    weightsBytes: numLayers * tokens * numHeads * length * bytesPerNumber,
    cacheBytes: numLayers * 2 * tokens * kvDim * bytesPerNumber,
  };
}

/**
 * The length at which scores and values cost as much as the projections.
 * @param {{embedDim: number, numHeads: number, numKvHeads: number}} sizes
 */
export function crossingLength({ embedDim, numHeads, numKvHeads }) {
  return embedDim + (numKvHeads * embedDim) / numHeads;
}

/**
 * @param {number} whole
 * @param {number} most
 * @returns {number[]} the divisors of `whole` up to `most`, in order
 */
export function divisorsUpTo(whole, most) {
  return Array.from({ length: Math.min(whole, most) }, (_, index) => index + 1).filter((n) => whole % n === 0);
}
