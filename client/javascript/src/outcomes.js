// What became of a recorded value, for the host program only.

/** @typedef {import("../index.js").Outcome} Outcome */

/** @type {Outcome} */
export const KEPT = Object.freeze({ outcome: "kept", reason: "" });

/**
 * Return the outcome of a value that has no report, for a reason that its value does not decide.
 * @param {import("../index.js").SilentReason} reason
 * @returns {Outcome}
 */
export const silent = (reason) => ({ outcome: "silent", reason });

/** @type {Outcome} */
export const FAILED = Object.freeze({ outcome: "failed", reason: "memory is full" });
