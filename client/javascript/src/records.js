// Plain records whose keys are names that somebody else chose.

/**
 * Sort what has keys, no two of them equal.
 * @template T
 * @param {T[]} items
 * @param {(item: T) => string} keyOf
 */
export function sort(items, keyOf) {
  return items.sort((a, b) => (keyOf(a) < keyOf(b) ? -1 : 1));
}

/**
 * Return what a record has of its own under a name; a metric may be called "constructor".
 * @template T
 * @param {Record<string, T>} record
 * @param {string} name
 * @returns {T | undefined}
 */
export function own(record, name) {
  return Object.hasOwn(record, name) ? record[name] : undefined;
}
