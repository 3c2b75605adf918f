// Outcomes of record(): whether a value was recorded, skipped or lost. Outcomes are for the host program, and are never
// sent.
//
//     recorded    the value takes part in the choice of the report of its interval
//     skipped     no value of the metric takes part now: no consent, an expired metric, no budget and so on
//     failed      the value is lost, or may be lost, because of the storage of the browser

/** @typedef {import("../index.js").Outcome} Outcome */

/**
 * The value is in memory or in the store. One event of each interval becomes the report, and this event takes part in
 * the choice.
 * @type {Outcome}
 */
export const RECORDED = Object.freeze({ outcome: "recorded", reason: "" });

/**
 * Return the outcome of a value that is skipped. The reason depends on registry, calendar, consent and secret, and
 * never on the value. Otherwise the absence of a report would tell the collector something about the value.
 * @param {import("../index.js").SkipReason} reason
 * @returns {Outcome}
 */
export const skipOutcome = (reason) => ({ outcome: "skipped", reason });

/**
 * The value of a durable metric is in memory only, because no text could be written into synchronous storage
 * (deferred_events.js). It is lost if the page ends before its transaction.
 * @type {Outcome}
 */
export const NOT_STORED = Object.freeze({ outcome: "failed", reason: "not stored" });

/**
 * The store has not responded for so long that the memory for events is full. The value is lost.
 * @type {Outcome}
 */
export const MEMORY_FULL = Object.freeze({ outcome: "failed", reason: "memory is full" });
