// Waits after failures: the backoff of an upload, the pause of all uploads, and Retry-After.
//
// The uploader calls `backOff` after a failed attempt, and sets `device.sending` to zeros after a result. Before each
// attempt it calls `findWait`.
//
// After the n-th attempt of an upload fails, its backoff is uniform on [0, min(5 s * 2^n, 1 h)]. After the n-th failure
// in a row, of whichever upload, the pause of all uploads is uniform on [0, min(5 s * 2^(n - 1), 1 h)]. Both begin where
// the wait that the collector has asked for (Retry-After) ends.
//
//     failure                                                    waits
//     an error response, the first failure in a row              the upload: only this upload may be at fault
//     an error response, after another failure                   the upload, and all others
//     no response: the network or the collector is down          the upload, and all others
//     a refusal for good                                         none: the collector works
//
// The waits are stored as times in seconds since 1970, 0 without a wait: `device.sending.waitUntil` (Retry-After),
// `device.sending.pauseUntil`, and `backoff` of each upload. `device.sending.failures` counts failures in a row.
//
// Clocks may be wrong: a wait that ends later than the longest possible wait from now was computed while the clock was
// ahead. Such a wait is ignored (`isAhead`).

import { ONE } from "./params.js";
import { DAY } from "./periods.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("../index.js").TransportResponse} TransportResponse */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").QueuedUpload} QueuedUpload */
/** @typedef {import("./uploader.js").Step} Step */

/** Seconds of a claim. Within them no other tab sends the upload, also if the tab that has claimed it has ended. */
export const CLAIM_SECONDS = 2;
/** Limit of the first backoff and of the first pause, before doubling, in seconds. */
const FIRST_BACKOFF_SECONDS = 5;
/** Largest backoff, in seconds. With a larger number, reports arrive later after an outage of the collector. */
const MAX_BACKOFF_SECONDS = 3600;
/** Longest wait of this module, in seconds: Retry-After of at most 23 h and a backoff of at most 1 h. */
const MAX_WAIT_SECONDS = DAY;

/**
 * Set the waits after a failed attempt, and return the time of the next attempt of any upload. The table above lists
 * the cases.
 * @param {Device} device
 * @param {QueuedUpload | undefined} upload undefined if another tab has recorded a result
 * @param {TransportResponse | undefined} response the error response
 * @param {number} now
 * @param {Coins} coins
 * @returns {number}
 */
export function backOff({ sending }, upload, response, now, coins) {
  const retryAfter = Number(response?.retryAfter) || 0; // a transport of the host program may return anything
  // A backoff follows. The sum must not exceed the longest wait, or it would be ignored.
  const seconds = Math.min(Math.max(retryAfter, 0), MAX_WAIT_SECONDS - MAX_BACKOFF_SECONDS);
  sending.waitUntil = now + seconds;
  if (upload) upload.backoff = sending.waitUntil + drawDelay(upload.attempts, coins); // attempts with the failed one
  sending.failures += 1;
  if (response && sending.failures === 1) return sending.waitUntil;
  sending.pauseUntil = sending.waitUntil + drawDelay(sending.failures - 1, coins);
  return sending.pauseUntil;
}

/**
 * Return whether the backoff of an upload is not over.
 * @param {QueuedUpload} upload
 * @param {number} now
 */
export function isBackingOff({ backoff }, now) {
  return isAhead(backoff, now, MAX_WAIT_SECONDS);
}

/**
 * Return a step that waits for an upload; undefined if the upload may be sent now.
 * @param {Device} device
 * @param {Partial<QueuedUpload>} upload a finished report has no claim
 * @param {number} now
 * @param {number} backoff end of the upload's backoff, 0 to ignore it
 * @param {boolean} ignorePause
 * @returns {Step | undefined}
 */
export function findWait({ sending }, { claimed = 0 }, now, backoff, ignorePause) {
  if (isAhead(claimed, now, CLAIM_SECONDS)) return { nextAt: claimed, reason: "busy" };
  if (isAhead(sending.waitUntil, now, MAX_WAIT_SECONDS)) {
    return { nextAt: sending.waitUntil, reason: "asked to wait" };
  }
  const until = Math.max(backoff, ignorePause ? 0 : sending.pauseUntil);
  return isAhead(until, now, MAX_WAIT_SECONDS) ? { nextAt: until } : undefined;
}

/**
 * Return whether a stored time is ahead, and not further ahead than the longest wait of its kind. A time beyond it was
 * stored before the clock was set back.
 * @param {number} time
 * @param {number} now
 * @param {number} longest
 */
function isAhead(time, now, longest) {
  return now < time && time <= now + longest;
}

/**
 * Draw a random delay in seconds, uniform below a limit that doubles with each attempt. Without the randomness all
 * devices would come back at the same time after an outage.
 * @param {number} doublings number of times that the limit is doubled
 * @param {Coins} coins
 */
function drawDelay(doublings, coins) {
  const limit = Math.min(FIRST_BACKOFF_SECONDS * 2 ** doublings, MAX_BACKOFF_SECONDS);
  return (coins(1)[0] / ONE) * limit;
}
