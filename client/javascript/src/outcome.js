// Outcomes of record(): whether a value was recorded, skipped or lost. Outcomes are for the host program, and are never
// sent.

/** @typedef {import("../index.js").Outcome} Outcome */

/**
 * The value is in memory or in the store. One event of each interval is drawn for the report. This event takes part.
 * @type {Outcome}
 */
export const RECORDED = Object.freeze({ outcome: "recorded", reason: "" });

/**
 * Return the outcome of a value that is not reported. The reason depends on registry, calendar, consent and
 * secret, and never on the value: otherwise the host program would learn about the value from the reason.
 * @param {import("../index.js").SkipReason} reason
 * @returns {Outcome}
 */
export const skipOutcome = (reason) => ({ outcome: "skipped", reason });

/** @type {Outcome} the value of a durable metric is in memory only, because there is no synchronous storage */
export const NOT_STORED = Object.freeze({ outcome: "failed", reason: "not stored" });

/** @type {Outcome} the store has not responded for so long that memory is full; the value is lost */
export const MEMORY_FULL = Object.freeze({ outcome: "failed", reason: "memory is full" });
