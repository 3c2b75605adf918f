// Cooldowns and spreads: when a metric may send its next report after an attempt.
//
// A collector protects a device by adding the reports of many devices, and it counts devices by counting reports. So at
// most one report of a metric leaves a device in an interval (a day, a week or an epoch). Several reports may be
// finished all the same, for example after days without network. An attempt to send a report begins the cooldown, in
// which no other report of the metric leaves:
//
//     attempt of report A              the interval of the attempt ends
//     Oct 5, 08:00                     Oct 6, 00:00           Oct 6, 06:00
//     |------------ cooldown ----------|-------- spread ------|
//                                                             report B may leave
//
// - The cooldown ends with the interval of the attempt, and not before report A has a result. Report A may have reached
//   the collector although no response came back.
// - The spread is a random part of the next interval. It applies if the random time of report B (`sendAfter`) came
//   before the cooldown ended. Without the spread, all devices that were offline would send at midnight. A flush
//   ignores the spread. So do the reports that an earlier page has left (the backlog), because this page may end soon,
//   too.
//
// `spool.last[METRIC]` is a pair: the time of the last attempt, and a random fraction in [0, 1). The spread is this
// fraction of an interval. In the picture the fraction is 0.25. It is drawn once, at the attempt. If each step of the
// uploader drew a new fraction, the report would leave at the first step with a small one, soon after midnight.
//
// The uploader calls `recordAttempt` when it claims an upload, and `findCooldowns` before it chooses the next one.

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
 * Store the time of a metric's attempt, which begins its cooldown. The stored time never decreases, unless it is far
 * ahead:
 *
 *     clock                                       stored time
 *     as usual: later than the last attempt       now
 *     set back a little since the last attempt    the last attempt. The time `now` would end the cooldown too early,
 *                                                 and two reports would leave in one interval
 *     far ahead at the last attempt, right now    now
 * @param {Spool} spool
 * @param {{ metric: string, interval: Interval }} upload
 * @param {number} now
 * @param {Coins} coins
 */
export function recordAttempt(spool, { metric, interval }, now, coins) {
  const [last] = getOwnEntry(spool.last, metric) ?? [0];
  const isLastFarAhead = isFarAhead(findInterval(interval, last), now);
  spool.last[metric] = [isLastFarAhead ? now : Math.max(last, now), coins(1)[0] / ONE];
}

/**
 * Return for each metric the time until which its finished reports wait: the end of a stop or of a cooldown. A metric
 * without an entry does not wait.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 * @param {unknown} [ignoreSpread] truthy for the end of the cooldown without the spread: in a flush, and for the backlog
 * @returns {Map<string, number>}
 */
export function findCooldowns(device, spool, now, ignoreSpread) {
  const cooldowns = new Map();
  // The oldest report of a metric leaves next, so its interval and its `sendAfter` count. It comes last in the loop,
  // and overwrites the entry of a newer report.
  const newestFirst = [...spool.reports].sort((a, b) => b.sendAfter - a.sendAfter);
  for (const report of newestFirst) {
    const end = findEnd(device, spool, report, now, ignoreSpread);
    if (end) cooldowns.set(report.metric, end);
  }
  return cooldowns;
}

/**
 * Return the time until which a finished report waits, 0 if it does not wait. The first case that applies counts:
 *
 *     case                                          time
 *     the collector has stopped the metric          the end of the stop
 *     an upload of the metric has no result         infinity: the uploader sends this upload again first
 *     the metric has had no attempt                 0
 *     the cooldown begins far ahead                 0: the clock was wrong at the last attempt, or is wrong now
 *     otherwise                                     the end of the cooldown, with the spread
 *
 * With `interval = "epoch"` the cooldown lasts until the epoch of the attempt is over. While the epoch is not over, the
 * result is the end of today: the caller asks again then, and gets the end of the next day.
 * @param {Device} device
 * @param {Spool} spool
 * @param {FinishedReport} report
 * @param {number} now
 * @param {unknown} ignoreSpread
 */
function findEnd(device, spool, { metric, sendAfter, interval, epoch = "month" }, now, ignoreSpread) {
  // The default of `epoch` is for a report without a stored epoch. The shortest epoch gives the shortest cooldown.
  const stopEnd = findStopEnd(device, metric, now);
  if (stopEnd) return stopEnd;
  if (spool.uploads.some((upload) => upload.metric === metric)) return Infinity;
  const attempt = getOwnEntry(spool.last, metric);
  if (!attempt) return 0;
  const [lastAttempt, fraction] = attempt;
  const isSameEpoch = nameEpoch(epoch, dayOf(lastAttempt)) === nameEpoch(epoch, dayOf(now));
  const reference = interval === "epoch" && isSameEpoch ? now : lastAttempt;
  const cooldown = findInterval(interval, reference);
  if (isFarAhead(cooldown, now)) return 0;
  const { ends, seconds } = cooldown;
  if (ignoreSpread || sendAfter >= ends) return ends;
  // The report is given up GIVE_UP_SECONDS after `sendAfter`. A spread beyond this time would lose the report.
  return ends + fraction * Math.min(seconds, Math.max(sendAfter + GIVE_UP_SECONDS - ends, 0));
}
