// Outcomes of record(). They are for the host program only and are never sent.

/** @typedef {import("../index.js").Outcome} Outcome */

/** @type {Outcome} */
export const RECORDED = Object.freeze({ outcome: "recorded", reason: "" });

/**
 * Return the outcome of a value without a report. The reason never depends on the value.
 * @param {import("../index.js").SkipReason} reason
 * @returns {Outcome}
 */
export const skipped = (reason) => ({ outcome: "skipped", reason });

/** @type {Outcome} a durable value is in memory only */
export const NOT_STORED = Object.freeze({ outcome: "failed", reason: "not stored" });

/** @type {Outcome} */
export const FAILED = Object.freeze({ outcome: "failed", reason: "memory is full" });
