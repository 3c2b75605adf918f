// Sums, sorted lists, and records whose keys are names that somebody else chose.

/**
 * Sort an array in place by distinct keys, and return it.
 * @template T
 * @param {T[]} items
 * @param {(item: T) => string} keyOf
 */
export function sortByKey(items, keyOf) {
  return items.sort((a, b) => (keyOf(a) < keyOf(b) ? -1 : 1));
}

/**
 * Return a record's own entry. A metric may be called "constructor", which every record inherits.
 * @template T
 * @param {Record<string, T>} record
 * @param {string} name
 * @returns {T | undefined}
 */
export function ownEntry(record, name) {
  return Object.hasOwn(record, name) ? record[name] : undefined;
}

/**
 * Return the sum of numbers, 0 if there are none.
 * @param {Iterable<number>} numbers
 */
export function sum(numbers) {
  let total = 0;
  for (const number of numbers) total += number;
  return total;
}
