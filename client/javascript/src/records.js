// Plain records whose keys are names that somebody else chose.

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
