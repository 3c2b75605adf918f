// Small operations on arrays and records: a sum, a sort by key, and a safe look-up by name.

/**
 * Sort an array in place by a key. The keys must be distinct.
 * @template T
 * @param {T[]} items
 * @param {(item: T) => string} keyOf returns the key of an item. Keys are compared by their UTF-16 code units
 * @returns {T[]} the same array
 */
export function sortByKey(items, keyOf) {
  return items.sort((a, b) => (keyOf(a) < keyOf(b) ? -1 : 1));
}

/**
 * Return the entry of a record with a name, undefined if there is none. Inherited entries do not count. A metric may be
 * called "constructor", and record["constructor"] is a function that every record inherits from Object.
 * @template T
 * @param {Record<string, T>} record
 * @param {string} name
 * @returns {T | undefined}
 */
export function getOwnEntry(record, name) {
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
