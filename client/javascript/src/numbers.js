// The sum of numbers.

/**
 * Return the sum of numbers, 0 if there are none.
 * @param {Iterable<number>} numbers
 */
export function sum(numbers) {
  let whole = 0;
  for (const number of numbers) whole += number;
  return whole;
}
