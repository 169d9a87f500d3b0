// Random numbers from a seed, the same as in Python.

/**
 * The generator mulberry32, by Tommy Ettinger: a counter whose bits are mixed.
 * @param {number} seed
 * @param {number} stream of one seed: 0 draws the initial parameters, 1 the batches, 2 the held-out sequences
 */
export function randomNumbers(seed, stream) {
  let counter = (Math.imul(seed, 0x9e3779b1) + Math.imul(stream, 0x85ebca6b)) | 0;
  const uniform = () => {
    counter = (counter + 0x6d2b79f5) | 0;
    let bits = Math.imul(counter ^ (counter >>> 15), counter | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
  return {
    /** @type {() => number} at least 0 and below 1 */
    uniform,
    // By the method of Box and Muller, which gives two numbers, of which one is used.
    normal: () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()),
    /** @type {(count: number) => number} a whole number below `count` */
    below: (count) => Math.floor(count * uniform()),
  };
}
