// Short texts for many heads or queries. Pure functions.

/** Sorted whole numbers, with each run written as its ends: 0–2, 8. @param {number[]} numbers */
export function runsOf(numbers) {
  const starts = numbers.filter((number) => !numbers.includes(number - 1));
  const ends = numbers.filter((number) => !numbers.includes(number + 1));
  return starts.map((start, run) => (start === ends[run] ? String(start) : `${start}–${ends[run]}`)).join(", ");
}
