// What the client raises on purpose: mistakes of the program. No message holds a value.

/** Everything that is raised on purpose. */
export class RapporError extends Error {
  name = "RapporError";
}

/** A parameter or a setting is outside its range. */
export class ParamsError extends RapporError {
  name = "ParamsError";
}

/**
 * Return the entry of a table; ParamsError for a name that it does not have.
 * @template T
 * @param {Record<string, T>} table
 * @param {string} kind
 * @param {string} name
 */
export function entryOf(table, kind, name) {
  if (Object.hasOwn(table, name)) return table[name];
  throw new ParamsError(`${kind} must be one of ${Object.keys(table)}, got ${name}`);
}

/** A value is not of its metric's kind, or bytes are no report. */
export class ReportError extends RapporError {
  name = "ReportError";
}

/** A registry's entry is wrong, or a metric is not in it. */
export class MetricError extends RapporError {
  name = "MetricError";
}
