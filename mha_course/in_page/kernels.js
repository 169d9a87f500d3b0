// The loops of the stand-in for torch that take most of the time, on the memory of Python itself.
//
// Only this function runs in the worker, so it uses nothing from outside. Each kernel gets the place of a block of
// integers: sizes, strides, and places of numbers, counted in numbers of their own size. `_kernels.py` writes it.

/**
 * @typedef {{HEAP32: Int32Array, HEAPF32: Float32Array, HEAPF64: Float64Array}} Heap
 *   Python's memory; growing replaces its arrays, so each call reads them again
 */

/** @param {Heap} heap */
export function createKernels(heap) {
  const ONE = [
    (/** @type {number} */ x) => x,
    (/** @type {number} */ x) => -x,
    Math.exp,
    Math.log,
    Math.sqrt,
    (/** @type {number} */ x) => 1 / Math.sqrt(x),
    Math.sin,
    Math.cos,
    Math.tanh,
    (/** @type {number} */ x) => 1 / (1 + Math.exp(-x)),
    (/** @type {number} */ x) => (x < 0 ? 0 : x),
    (/** @type {number} */ x) => x * x,
    Math.abs,
    (/** @type {number} */ x) => Number(x > 0) - Number(x < 0),
  ];
  const TWO = [
    (/** @type {number} */ a, /** @type {number} */ b) => a + b,
    (/** @type {number} */ a, /** @type {number} */ b) => a - b,
    (/** @type {number} */ a, /** @type {number} */ b) => a * b,
    (/** @type {number} */ a, /** @type {number} */ b) => a / b,
    (/** @type {number} */ a, /** @type {number} */ b) => (a > b || a !== a ? a : b),
    (/** @type {number} */ a, /** @type {number} */ b) => (a < b || a !== a ? a : b),
  ];

  /**
   * Axes that can be walked as one become one; the last axis remains the innermost.
   * @param {number[]} shape @param {number[][]} strides of each tensor
   */
  const merged = (shape, strides) => {
    const sizes = /** @type {number[]} */ ([]);
    const steps = strides.map(() => /** @type {number[]} */ ([]));
    for (let axis = 0; axis < shape.length; axis++) {
      if (shape[axis] === 1) continue;
      const last = sizes.length - 1;
      if (last >= 0 && strides.every((own, i) => steps[i][last] === own[axis] * shape[axis])) {
        sizes[last] *= shape[axis];
        strides.forEach((own, i) => (steps[i][last] = own[axis]));
      } else {
        sizes.push(shape[axis]);
        strides.forEach((own, i) => steps[i].push(own[axis]));
      }
    }
    return sizes.length > 0 ? { sizes, steps } : { sizes: [1], steps: strides.map(() => [0]) };
  };

  /**
   * Calls `inner` for each row of the innermost axis with the places where it begins.
   * @param {number[]} shape @param {number[][]} strides @param {number[]} starts
   * @param {(count: number, places: number[], steps: number[]) => void} inner
   */
  const walk = (shape, strides, starts, inner) => {
    if (shape.includes(0)) return;
    const { sizes, steps } = merged(shape, strides);
    const last = sizes.length - 1;
    const at = sizes.map(() => 0);
    const places = [...starts];
    const innermost = steps.map((own) => own[last]);
    for (;;) {
      inner(sizes[last], places, innermost);
      let axis = last - 1;
      for (; axis >= 0; axis--) {
        const again = ++at[axis] === sizes[axis];
        if (again) at[axis] = 0;
        for (let i = 0; i < places.length; i++) places[i] += again ? steps[i][axis] * (1 - sizes[axis]) : steps[i][axis];
        if (!again) break;
      }
      if (axis < 0) return;
    }
  };

  /** @param {number[]} shape @returns {number[]} the strides of memory without gaps */
  const dense = (shape) => shape.map((_, axis) => shape.slice(axis + 1).reduce((all, n) => all * n, 1));

  /** Integers of a block, from one of its places. @param {number} place @param {number} count */
  const ints = (place, count) => Array.from(heap.HEAP32.subarray(place, place + count));

  /** A function of each number, or of the numbers at the same place. @param {number} block */
  const elementwise = (block) => {
    const [operation, inputs, ndim, out] = ints(block, 4);
    const shape = ints(block + 4, ndim);
    const starts = [out];
    const strides = [dense(shape)];
    for (let i = 0; i < inputs; i++) {
      const place = block + 4 + ndim + i * (ndim + 1);
      starts.push(heap.HEAP32[place]);
      strides.push(ints(place + 1, ndim));
    }
    const x = heap.HEAPF32;
    walk(shape, strides, starts, loopOf(x, operation));
  };

  /** @param {Float32Array} x @param {number} operation @returns {(count: number, p: number[], s: number[]) => void} */
  const loopOf = (x, operation) => {
    if (operation === 0)
      return (count, [to, from], [, step]) => {
        for (let i = 0, a = from; i < count; i++, a += step) x[to + i] = x[a];
      };
    if (operation < ONE.length) {
      const one = ONE[operation];
      return (count, [to, from], [, step]) => {
        for (let i = 0, a = from; i < count; i++, a += step) x[to + i] = one(x[a]);
      };
    }
    const name = operation - ONE.length;
    if (name === TWO.length)
      return (count, [to, chosen, from, other], [, step0, step1, step2]) => {
        for (let i = 0; i < count; i++) x[to + i] = x[chosen + i * step0] ? x[from + i * step1] : x[other + i * step2];
      };
    // Sums and products are most of the work, so each has a loop that nothing else slows down.
    if (name === 0)
      return (count, [to, a, b], [, stepA, stepB]) => {
        for (let i = 0; i < count; i++, a += stepA, b += stepB) x[to + i] = x[a] + x[b];
      };
    if (name === 2)
      return (count, [to, a, b], [, stepA, stepB]) => {
        for (let i = 0; i < count; i++, a += stepA, b += stepB) x[to + i] = x[a] * x[b];
      };
    const two = TWO[name];
    return (count, [to, a, b], [, stepA, stepB]) => {
      for (let i = 0; i < count; i++, a += stepA, b += stepB) x[to + i] = two(x[a], x[b]);
    };
  };

  /** Adds numbers to places; a stride of 0 sums. @param {number} block */
  const accumulate = (block) => {
    const [ndim, out, from] = ints(block, 3);
    const [shape, to, own] = [0, 1, 2].map((part) => ints(block + 3 + part * ndim, ndim));
    const x = heap.HEAPF32;
    walk(shape, [to, own], [out, from], (count, [a, b], [stepA, stepB]) => {
      if (stepA === 0) {
        let sum = x[a];
        for (let i = 0; i < count; i++, b += stepB) sum += x[b];
        x[a] = sum;
      } else {
        for (let i = 0; i < count; i++, a += stepA, b += stepB) x[a] += x[b];
      }
    });
  };

  /** Numbers of a matrix, row after row. @type {Float64Array[]} */
  const packed = [new Float64Array(0), new Float64Array(0)];

  /**
   * @param {number} side @param {number} from @param {number} rows @param {number} columns
   * @param {number} down @param {number} right
   */
  const pack = (side, from, rows, columns, down, right) => {
    if (packed[side].length < rows * columns) packed[side] = new Float64Array(rows * columns);
    const [to, x] = [packed[side], heap.HEAPF32];
    for (let i = 0, at = 0; i < rows; i++)
      for (let j = 0, place = from + i * down; j < columns; j++, place += right) to[at++] = x[place];
    return to;
  };

  /**
   * One product, two rows by four columns at a time, so that each number is read less often.
   * @param {Float64Array} a @param {Float64Array} b transposed
   * @param {number} out @param {number} rows @param {number} columns @param {number} inner
   */
  const multiply = (a, b, out, rows, columns, inner) => {
    const x = heap.HEAPF32;
    for (let i = 0; i < rows; i += 2) {
      // Beyond the last row or column, the same numbers are computed and written again.
      const below = Math.min(i + 1, rows - 1);
      for (let j = 0; j < columns; j += 4) {
        const q = Math.min(j + 1, columns - 1);
        const r = Math.min(j + 2, columns - 1);
        const s = Math.min(j + 3, columns - 1);
        let a0 = 0, a1 = 0, a2 = 0, a3 = 0, c0 = 0, c1 = 0, c2 = 0, c3 = 0;
        for (let k = 0, u = i * inner, v = below * inner, w = j * inner, dq = (q - j) * inner, dr = (r - j) * inner, ds = (s - j) * inner; k < inner; k++, u++, v++, w++) {
          const upper = a[u];
          const lower = a[v];
          const b0 = b[w];
          const b1 = b[w + dq];
          const b2 = b[w + dr];
          const b3 = b[w + ds];
          a0 += upper * b0;
          a1 += upper * b1;
          a2 += upper * b2;
          a3 += upper * b3;
          c0 += lower * b0;
          c1 += lower * b1;
          c2 += lower * b2;
          c3 += lower * b3;
        }
        const to = out + i * columns;
        const under = out + below * columns;
        x[to + j] = a0;
        x[to + q] = a1;
        x[to + r] = a2;
        x[to + s] = a3;
        x[under + j] = c0;
        x[under + q] = c1;
        x[under + r] = c2;
        x[under + s] = c3;
      }
    }
  };

  /** Products of matrices, (batch, rows, inner) by (batch, inner, columns). @param {number} block */
  const product = (block) => {
    const [batch, rows, columns, inner, out, left, right, ...steps] = ints(block, 13);
    const [nextLeft, leftDown, leftRight, nextRight, rightDown, rightRight] = steps;
    let b = packed[1];
    for (let i = 0; i < batch; i++) {
      const a = pack(0, left + i * nextLeft, rows, inner, leftDown, leftRight);
      if (i === 0 || nextRight !== 0) b = pack(1, right + i * nextRight, columns, inner, rightRight, rightDown);
      multiply(a, b, out + i * rows * columns, rows, columns, inner);
    }
  };

  /** A function of each row: softmax, its logarithm, or mean 0 and variance 1. @param {number} block */
  const rows = (block) => {
    const [kind, count, length, out, from, extra] = ints(block, 6);
    const x = heap.HEAPF32;
    for (let row = 0; row < count; row++) {
      const [start, to] = [from + row * length, out + row * length];
      if (kind === 2) normalize(x, start, to, length, heap.HEAPF64[extra]);
      else soften(x, start, to, length, kind === 1);
    }
  };

  /** @param {Float32Array} x @param {number} from @param {number} to @param {number} length @param {boolean} asLogarithm */
  const soften = (x, from, to, length, asLogarithm) => {
    let largest = -Infinity;
    for (let i = 0; i < length; i++) if (x[from + i] > largest || x[from + i] !== x[from + i]) largest = x[from + i];
    // A row of -Infinity gives NaN, as in torch.
    let total = 0;
    for (let i = 0; i < length; i++) total += Math.exp(x[from + i] - largest);
    const shift = largest + Math.log(total);
    for (let i = 0; i < length; i++) x[to + i] = asLogarithm ? x[from + i] - shift : Math.exp(x[from + i] - largest) / total;
  };

  /** The mean of a row, and what makes its variance 1. @param {Float32Array} x @param {number} from @param {number} length @param {number} eps */
  const scaleOf = (x, from, length, eps) => {
    let [sum, squares] = [0, 0];
    for (let i = 0; i < length; i++) sum += x[from + i];
    const mean = sum / length;
    for (let i = 0; i < length; i++) squares += (x[from + i] - mean) ** 2;
    return [mean, 1 / Math.sqrt(squares / length + eps)];
  };

  /** @param {Float32Array} x @param {number} from @param {number} to @param {number} length @param {number} eps */
  const normalize = (x, from, to, length, eps) => {
    const [mean, scale] = scaleOf(x, from, length, eps);
    for (let i = 0; i < length; i++) x[to + i] = (x[from + i] - mean) * scale;
  };

  /** The gradient of such a function, from that of its result; `from` has the numbers of the input. @param {number} block */
  const rowsBack = (block) => {
    const [kind, count, length, out, result, gradient, from, extra] = ints(block, 8);
    const x = heap.HEAPF32;
    for (let row = 0; row < count; row++) {
      const [to, y, g] = [out + row * length, result + row * length, gradient + row * length];
      let [sum, products] = [0, 0];
      for (let i = 0; i < length; i++) {
        sum += x[g + i];
        products += x[g + i] * x[y + i];
      }
      if (kind === 0) for (let i = 0; i < length; i++) x[to + i] = x[y + i] * (x[g + i] - products);
      else if (kind === 1) for (let i = 0; i < length; i++) x[to + i] = x[g + i] - Math.exp(x[y + i]) * sum;
      else {
        const scale = scaleOf(x, from + row * length, length, heap.HEAPF64[extra])[1];
        for (let i = 0; i < length; i++) x[to + i] = scale * (x[g + i] - (sum + x[y + i] * products) / length);
      }
    }
  };

  /** @param {number} block @param {(x: Float32Array, one: number, many: number) => void} move */
  const along = (block, move) => {
    const [ndim, axis, out, from, index] = ints(block, 5);
    const [shape, own, order] = [0, 1, 2].map((part) => ints(block + 5 + part * ndim, ndim));
    const [x, places] = [heap.HEAPF32, heap.HEAP32];
    const step = own[axis];
    const others = own.map((each, i) => (i === axis ? 0 : each));
    walk(shape, [dense(shape), others, order], [out, from, index], (count, [one, many, at], [a, b, c]) => {
      // An index has 64 bits, of which the lower 32 are enough.
      for (let i = 0; i < count; i++) move(x, one + i * a, many + i * b + places[2 * (at + i * c)] * step);
    });
  };

  /** Takes numbers from places along an axis. @param {number} block */
  const gather = (block) => along(block, (x, one, many) => (x[one] = x[many]));

  /** Adds numbers to places along an axis. @param {number} block */
  const scatter = (block) => along(block, (x, one, many) => (x[many] += x[one]));

  /** One step of Adam in place. @param {number} block */
  const adam = (block) => {
    const [count, parameter, gradient, first, second, settings] = ints(block, 6);
    const [rate, beta1, beta2, eps, root, decay, shrink] = heap.HEAPF64.subarray(settings, settings + 7);
    const x = heap.HEAPF32;
    for (let i = 0; i < count; i++) {
      const old = x[parameter + i] * shrink;
      const slope = x[gradient + i] + decay * old;
      const m = (x[first + i] += (slope - x[first + i]) * (1 - beta1));
      const v = (x[second + i] = x[second + i] * beta2 + (1 - beta2) * slope * slope);
      x[parameter + i] = old - (rate * m) / (Math.sqrt(v) / root + eps);
    }
  };

  return { elementwise, accumulate, product, rows, rowsBack, gather, scatter, adam };
}
