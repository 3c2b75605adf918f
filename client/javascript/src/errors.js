// Errors that the client raises on purpose, for mistakes of the program that embeds it.
//
//     RapporError
//     |-- ParamsError    an option or a parameter is outside its range
//     |-- MetricError    the registry is wrong, or a metric is unknown
//     `-- ReportError    a recorded value is of the wrong kind
//
// No message contains a recorded value, because programs send messages of errors to other services. Failures
// of storage and network raise none of these: the client counts them (see #runSafely in client.js).

/** Base of all errors that the client raises on purpose. */
export class RapporError extends Error {
  name = "RapporError";
}

/** An option or a parameter is outside its range. */
export class ParamsError extends RapporError {
  name = "ParamsError";
}

/** A recorded value is of the wrong kind for its metric, such as a number for a metric of strings. */
export class ReportError extends RapporError {
  name = "ReportError";
}

/** An entry of a registry is wrong, or a metric is unknown. */
export class MetricError extends RapporError {
  name = "MetricError";
}

/**
 * Return the entry of a table with the name that a program has passed for a parameter.
 * @template T
 * @param {Record<string, T>} table entries by name
 * @param {string} parameter name of the parameter, for the message
 * @param {string} name name of the entry, as the program passed it
 * @returns {T}
 * @throws {ParamsError} the table has no such entry
 */
export function requireEntry(table, parameter, name) {
  // `in` would also accept "constructor" and other names that every object inherits.
  if (Object.hasOwn(table, name)) return table[name];
  throw new ParamsError(`${parameter} must be one of ${Object.keys(table)}, got ${name}`);
}
