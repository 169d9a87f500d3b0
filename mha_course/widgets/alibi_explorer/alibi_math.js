// ALiBi and a needle, in float64, by the same rules as mha_lib.relative.

/**
 * The slope of each head's penalty on distance. If the number of heads h is a power of two, the slopes are
 * 2^(-8/h), 2^(-16/h), …. Otherwise the first slopes are those of the next lower power of two, and the
 * remaining ones are every other slope of the next higher power.
 * @param {number} numHeads
 * @returns {number[]} rounded to float32 as in torch, because the rounding shows over hundreds of tokens
 */
export function alibiSlopes(numHeads) {
  const power = 2 ** Math.floor(Math.log2(numHeads));
  return Array.from({ length: numHeads }, (_, head) =>
    Math.fround(
      head < power ? 2 ** ((-8 * (head + 1)) / power) : 2 ** ((-8 * (2 * (head - power) + 1)) / (2 * power)),
    ),
  );
}

/**
 * The score and weight of a needle in each head. The needle is the one key that matches the last query: before
 * the bias, its score is `needleScore`, and the score of every other key is 0.
 * @param {{numHeads: number, length: number, needle: number, needleScore: number, shown: string}} state
 *   `needle` is its distance from the query
 */
export function computeAlibi({ numHeads, length, needle, needleScore, shown }) {
  const slopes = alibiSlopes(numHeads);
  const weightOf = slopes.map((slope) => needleWeight(slope, length, needleScore));
  const match = Math.exp(needleScore);
  const by_distance = slopes.map((slope, head) =>
    Float64Array.from({ length: length - 1 }, (_, index) =>
      shown === "bias" ? needleScore - slope * (index + 1) : weightOf[head](index + 1),
    ),
  );
  return {
    slopes,
    // At this distance, the bias has used up the score, and the needle scores the same as the query's own token.
    reaches: slopes.map((slope) => needleScore / slope),
    score_after: slopes.map((slope) => needleScore - slope * needle),
    weight_before: match / (match + length - 1),
    weight_after: weightOf.map((weight) => weight(needle)),
    by_distance,
  };
}

/**
 * The weight of the needle as a function of its distance from the query.
 * @param {number} slope @param {number} length @param {number} needleScore
 * @returns {(distance: number) => number}
 */
function needleWeight(slope, length, needleScore) {
  let others = 0; // as if every key had the score 0 before the bias
  for (let distance = 0; distance < length; distance += 1) others += Math.exp(-slope * distance);
  return (distance) => {
    const penalty = Math.exp(-slope * distance);
    const own = Math.exp(needleScore) * penalty;
    return own / (others - penalty + own);
  };
}

/**
 * The distances at which a curve is drawn, dense enough for a logarithmic axis: all short ones, then steps of a
 * few percent. The last distance is always included.
 * @param {number} last @returns {number[]}
 */
export function curveDistances(last) {
  const distances = [];
  for (let distance = 1; distance < last; distance = Math.max(distance + 1, Math.round(distance * 1.03))) {
    distances.push(distance);
  }
  return [...distances, last];
}

/**
 * The distance to which a key moves the needle. Arrows move it by one token or, with Shift, by a factor of 2, as
 * Page Up and Page Down do; Home moves it to the nearest distance and End to the farthest.
 * @param {{key: string, shiftKey: boolean}} event @param {number} from @param {number} last
 * @returns {number | undefined} undefined for a key that moves nothing
 */
export function needleTarget({ key, shiftKey }, from, last) {
  const [farther, nearer] = shiftKey ? [2 * from, Math.floor(from / 2)] : [from + 1, from - 1];
  /** @type {Object<string, number>} */
  const targets = {
    ArrowRight: farther,
    ArrowUp: farther,
    ArrowLeft: nearer,
    ArrowDown: nearer,
    PageUp: 2 * from,
    PageDown: Math.floor(from / 2),
    Home: 1,
    End: last,
  };
  return targets[key] === undefined ? undefined : Math.min(Math.max(targets[key], 1), last);
}
