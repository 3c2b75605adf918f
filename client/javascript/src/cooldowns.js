// Cooldowns and spreads: when a metric may send its next report after an attempt.
//
// A collector protects a device by adding the reports of many devices, and it counts devices by counting reports. So at
// most one report of a metric leaves a device in an interval, although several may be finished, for example after days
// without network. An attempt begins the cooldown, in which no other report of the metric leaves:
//
//     attempt of report A              the interval of the attempt ends
//     Oct 5, 08:00                     Oct 6, 00:00           Oct 6, 06:00
//     |------------ cooldown ----------|-------- spread ------|
//                                                             report B may leave
//
// - The cooldown ends with the interval of the attempt, and not before report A has a result: it may have reached the
//   collector although no response came back.
// - The spread is a random part of the next interval. It applies if report B could have left before the cooldown ended.
//   Without the spread, all devices that were offline would send at midnight. A flush ignores the spread, and so does
//   the backlog of an earlier page.
//
// `spool.last[METRIC]` is [time of the last attempt, random part of an interval in [0, 1)]. The part is drawn at the
// attempt. A part that each step drew anew would be the smallest of many.

import { getOwnEntry } from "./collections.js";
import { ONE } from "./params.js";
import { dayOf, findInterval, isFarAhead, nameEpoch } from "./periods.js";
import { GIVE_UP_SECONDS } from "./spool.js";
import { findStopEnd } from "./stops.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("../index.js").Interval} Interval */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").FinishedReport} FinishedReport */
/** @typedef {import("../documents.js").Spool} Spool */

/**
 * Store the time of a metric's attempt, which begins its cooldown. The stored time never decreases: by a clock that was
 * set back, the cooldown would end early, and two reports would leave in one interval. A time far ahead was stored while
 * the clock was wrong, and is replaced.
 * @param {Spool} spool
 * @param {{ metric: string, interval: Interval }} upload
 * @param {number} now
 * @param {Coins} coins
 */
export function recordAttempt(spool, { metric, interval }, now, coins) {
  const [last] = getOwnEntry(spool.last, metric) ?? [0];
  const isWrong = isFarAhead(findInterval(interval, last), now);
  spool.last[metric] = [isWrong ? now : Math.max(last, now), coins(1)[0] / ONE];
}

/**
 * Return the time until which the finished reports of each metric wait. A metric without an entry does not wait.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 * @param {unknown} [ignoreSpread] truthy for the end of the cooldown without the spread
 * @returns {Map<string, number>}
 */
export function findCooldowns(device, spool, now, ignoreSpread) {
  const cooldowns = new Map();
  // The oldest report of each metric decides, because it overwrites the entry of a newer report.
  const newestFirst = [...spool.reports].sort((a, b) => b.sendAfter - a.sendAfter);
  for (const report of newestFirst) {
    const end = findEnd(device, spool, report, now, ignoreSpread);
    if (end) cooldowns.set(report.metric, end);
  }
  return cooldowns;
}

/**
 * Return the time until which a finished report waits, 0 if it does not wait. The first of these cases applies:
 *
 *     case                                          time
 *     the collector has stopped the metric          the end of the stop
 *     an upload of the metric has no result         infinity
 *     the metric has had no attempt                 0
 *     the last attempt was dated far ahead          0: the clock was wrong
 *     otherwise                                     the end of the cooldown, with the spread
 *
 * With `interval = "epoch"` the cooldown ends today, as long as the epoch of the attempt is not over. It is computed
 * again tomorrow, so it ends with the epoch. A report without a stored epoch is assumed to have the shortest epoch.
 * @param {Device} device
 * @param {Spool} spool
 * @param {FinishedReport} report
 * @param {number} now
 * @param {unknown} ignoreSpread
 */
function findEnd(device, spool, { metric, sendAfter, interval, epoch = "month" }, now, ignoreSpread) {
  const stopEnd = findStopEnd(device, metric, now);
  if (stopEnd) return stopEnd;
  if (spool.uploads.some((upload) => upload.metric === metric)) return Infinity;
  const attempt = getOwnEntry(spool.last, metric);
  if (!attempt) return 0;
  const [lastAttempt, part] = attempt;
  const isSameEpoch = nameEpoch(epoch, dayOf(lastAttempt)) === nameEpoch(epoch, dayOf(now));
  const reference = interval === "epoch" && isSameEpoch ? now : lastAttempt;
  const cooldown = findInterval(interval, reference);
  if (isFarAhead(cooldown, now)) return 0;
  const { ends, seconds } = cooldown;
  if (ignoreSpread || sendAfter >= ends) return ends;
  // The spread must not reach the time at which the report is given up.
  return ends + part * Math.min(seconds, Math.max(sendAfter + GIVE_UP_SECONDS - ends, 0));
}
