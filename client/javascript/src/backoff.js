// Waits after failures: the backoff of an upload, the pause of all uploads, and Retry-After.
//
// The order of the calls, for each attempt to send an upload:
//
// 1. `findWait` returns whether the upload must wait now. If not, the uploader claims the upload and sends it.
// 2. The attempt fails: `backOff` sets the waits. The attempt has a result: the uploader sets `device.sending` to
//    zeros, which ends the waits of all uploads.
//
// Four waits are stored, as times in seconds since 1970, 0 without a wait:
//
//     wait          stored in                     length
//     claim         `claimed` of an upload        CLAIM_SECONDS, set by the uploader before each attempt
//     Retry-After   `device.sending.waitUntil`    as long as the collector asks for, at most 23 h
//     backoff       `backoff` of an upload        after its n-th attempt: uniform on [0, min(5 s * 2^n, 1 h)]
//     pause         `device.sending.pauseUntil`   after the n-th failure in a row, of any upload: uniform on
//                                                 [0, min(5 s * 2^(n - 1), 1 h)]
//
// Backoff and pause begin at the end of Retry-After. `device.sending.failures` is the number of failures in a row.
//
//     failure                                                    what waits
//     an error response, the first failure in a row              this upload: it alone may be at fault
//     an error response, after another failure                   this upload and all others
//     no response: the network or the collector is down          this upload and all others
//     the collector refuses the upload for good                  nothing: the collector works, so this is a result
//
// Example: the collector is down, and the first attempt of an upload fails. The upload waits for up to 10 s, and all
// uploads wait for up to 5 s. After the second failure the limits are 20 s and 10 s.
//
// Clocks may be wrong. A wait that ends later than the longest possible wait from now was computed while the clock was
// ahead. Such a wait is ignored (`mustWait`). Otherwise a clock that was a year ahead once would stop all uploads for a
// year.
//
// Waits are random. A coin is a uniform random integer in [0, 2^32), and coin / 2^32 times a limit is a wait below the
// limit.

import { ONE } from "./params.js";
import { DAY } from "./periods.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("../index.js").TransportResponse} TransportResponse */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").QueuedUpload} QueuedUpload */
/** @typedef {import("./uploader.js").Step} Step */

/**
 * Duration of a claim, in seconds. A tab claims an upload before it sends the upload, and no other tab sends a claimed
 * upload. With a larger number, an upload whose tab has ended waits longer. With a smaller number, two tabs more often
 * send the same upload, which the collector counts once.
 */
export const CLAIM_SECONDS = 2;
/**
 * Largest pause after the first failure in a row, in seconds. Each further failure doubles the limit. The largest
 * backoff after the first attempt is twice this number (see `backOff`). With a larger number, a short outage delays
 * reports more.
 */
const FIRST_PAUSE_SECONDS = 5;
/**
 * Largest backoff and pause, in seconds. With a larger number, reports arrive later after an outage of the collector.
 */
const MAX_BACKOFF_SECONDS = 3600;
/** Longest wait of this module, in seconds: Retry-After of at most 23 h and a backoff of at most 1 h. */
const MAX_WAIT_SECONDS = DAY;

/**
 * Set the waits after a failed attempt, and return the time from which on any upload may be attempted. The head of this
 * module lists the cases.
 * @param {Device} device
 * @param {QueuedUpload | undefined} upload undefined if it is no longer queued: another tab has recorded a result, or
 *   the person has refused the metric. The failure still shows that the collector has a problem, so the other uploads
 *   wait
 * @param {TransportResponse | undefined} response the error response; undefined if no response came
 * @param {number} now
 * @param {Coins} coins returns uniform random integers in [0, 2^32), from which the random waits are computed
 * @returns {number}
 */
export function backOff({ sending }, upload, response, now, coins) {
  const retryAfter = Number(response?.retryAfter) || 0; // a transport of the host program may return a text or NaN
  // The backoff begins after these seconds. If the sum exceeded MAX_WAIT_SECONDS, `mustWait` would take the backoff for
  // the work of a wrong clock, and the upload would not wait at all.
  const seconds = Math.min(Math.max(retryAfter, 0), MAX_WAIT_SECONDS - MAX_BACKOFF_SECONDS);
  sending.waitUntil = now + seconds;
  // `attempts` includes the attempt that has failed, so its limit is doubled at least once.
  if (upload) upload.backoff = sending.waitUntil + drawDelay(upload.attempts, coins);
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
  return mustWait(backoff, now, MAX_WAIT_SECONDS);
}

/**
 * Return until when an upload must wait, and why; undefined if the upload may be sent now. A backoff and a pause have
 * no reason. `Step` is the type of the result of one step of the uploader.
 * @param {Device} device
 * @param {Partial<QueuedUpload>} upload an upload, or a finished report that is not in an upload yet: it has no claim
 * @param {number} now
 * @param {number} backoff end of the upload's backoff, 0 to ignore it
 * @param {boolean} ignorePause true for the first step of a flush: the host program asks for an attempt now
 * @returns {Step | undefined}
 */
export function findWait({ sending }, { claimed = 0 }, now, backoff, ignorePause) {
  if (mustWait(claimed, now, CLAIM_SECONDS)) return { nextAt: claimed, reason: "busy" };
  if (mustWait(sending.waitUntil, now, MAX_WAIT_SECONDS)) {
    return { nextAt: sending.waitUntil, reason: "asked to wait" };
  }
  // Each wait is checked by itself. The later of both may come from a clock that was ahead: only this one is ignored,
  // and the other one is still kept.
  const ends = [backoff, ignorePause ? 0 : sending.pauseUntil];
  const waits = ends.filter((until) => mustWait(until, now, MAX_WAIT_SECONDS));
  return waits.length ? { nextAt: Math.max(...waits) } : undefined;
}

/**
 * Return whether a wait holds: its end is later than now, by no more than the longest wait of its kind. A still later
 * end was computed while the clock was ahead, and such a wait is ignored.
 * @param {number} time end of the wait, 0 without a wait
 * @param {number} now
 * @param {number} longest longest wait of this kind, in seconds
 */
function mustWait(time, now, longest) {
  return now < time && time <= now + longest;
}

/**
 * Draw a random delay in seconds, uniform below a limit that doubles with each attempt. Without the randomness all
 * devices would come back at the same time after an outage.
 * @param {number} doublings number of times that the limit is doubled
 * @param {Coins} coins returns uniform random integers in [0, ONE)
 */
function drawDelay(doublings, coins) {
  const limit = Math.min(FIRST_PAUSE_SECONDS * 2 ** doublings, MAX_BACKOFF_SECONDS);
  return (coins(1)[0] / ONE) * limit;
}
