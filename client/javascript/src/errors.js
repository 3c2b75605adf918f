// Errors that the client raises on purpose, for mistakes of the program. No message contains a value.

/** Base of all errors that are raised on purpose. */
export class RapporError extends Error {
  name = "RapporError";
}

/** A parameter or a setting is outside its range. */
export class ParamsError extends RapporError {
  name = "ParamsError";
}

/**
 * Return the entry of a table; ParamsError for an unknown name.
 * @template T
 * @param {Record<string, T>} table
 * @param {string} kind
 * @param {string} name
 */
export function entryOf(table, kind, name) {
  if (Object.hasOwn(table, name)) return table[name];
  throw new ParamsError(`${kind} must be one of ${Object.keys(table)}, got ${name}`);
}

/** A value is not of its metric's kind. */
export class ReportError extends RapporError {
  name = "ReportError";
}

/** An entry of a registry is wrong, or a metric is unknown. */
export class MetricError extends RapporError {
  name = "MetricError";
}
