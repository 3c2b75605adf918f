// Admission: which event of an interval becomes the report of the interval, and when the report may leave.
//
// An event is one call of record(). A metric sends at most one report in an interval (a day or a week, or one day of an
// epoch). It is the report of one event, chosen uniformly among the events of the interval. The choice needs no counter
// of events: each event draws a tag, a random integer of 64 bits, and the report of the event with the smallest tag is
// the pending report, also over several tabs and restarts.
//
//     interval is open       event a, tag 71    pending report: a
//                            event b, tag 24    pending report: b, because 24 < 71
//                            event c, tag 58    pending report: still b; a and c leave no trace
//     interval has ended     b is admitted to its scope and moves to the spool; it may leave at a random time of
//                            the next interval
//
// (A scope is one metric in one epoch under one permanent fingerprint, see scopes.js. All of its reports repeat one
// permanent response.)
//
// The writer (writer.js) uses this module for each event, in one transaction:
//
// 1. queueEndedReports   decides the pending reports of intervals that have ended before the event
// 2. findSmallestTag     returns the tag that the event must be below
// 3. admitEvent          if its tag is smaller: makes its report the pending report
//
// The record of an interval is `device.pending["METRIC EPOCH"]`, with the end and the length of the interval, the
// smallest tag and the pending report. After the decision the record stays without its report. It remembers that the
// interval has had its report. Otherwise a clock that is set back into the interval would lead to a second one.
//
// An interval is "far ahead" if it begins more than its own length after the present time: the clock was wrong when
// the interval began, or is wrong now.
//
// A scope is "full" if it has had the largest number of reports that fit into its epoch. The cost of the metric was
// computed from this number, so a further report would cost more than the metric has reserved. A clock that was set
// back, or a changed registry, can lead to a further report.
//
// An event is entered into an interval by these rules (findOpenInterval). The first case that applies counts:
//
//     case                                                  the event
//     a registry has changed the length of the epochs,      takes no part. Otherwise the device would send two reports
//     and an interval of the earlier epoch is open          in one interval, one of each epoch
//     `interval = "epoch"`, last day of the epoch           takes no part: its report would leave in the next epoch
//     no record, or its interval is over or far ahead       begins an interval; takes no part if the scope is full
//     the interval is open, its report is decided           takes no part (a clock was set back)
//     `interval = "epoch"`, and the pending report is of    replaces the pending report, because the first day with an
//     a later day than the event (a clock was set back)     event counts
//     the interval is open, its report is pending           competes by its tag
//
// The pending report of an interval that is over or far ahead is decided by these rules (queueEndedReports):
//
//     case                                                  the report
//     `interval = "epoch"`, and the epoch is over           is given up, and counted as given up
//     its scope is full                                     is dropped
//     its scope has another permanent response than the     is drawn again from the permanent response of the scope
//     response from which the report was drawn
//     otherwise                                             is queued as it is

import { toHex } from "./bytes.js";
import { sortByKey } from "./collections.js";
import { ONE } from "./params.js";
import { findDayEnd, dayOf, nameEpoch, nameEpochs, findInterval, isFarAhead } from "./periods.js";
import { countReports } from "./privacy_spent.js";
import { drawReport, findRules, findScope, assignScope, addReportToScope } from "./scopes.js";
import { addCount } from "./state.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").MetricRules} MetricRules */
/** @typedef {import("../documents.js").PendingReport} PendingReport */
/** @typedef {import("../documents.js").Scope} Scope */
/** @typedef {import("../documents.js").Spool} Spool */
/** @typedef {import("./scopes.js").ScopeWithParams} ScopeWithParams */
/** @typedef {ScopeWithParams & { rules: MetricRules }} AdmissionRequest the scope of an event's report, its parameters, and the metric's rules on the day */
/** @typedef {{ ends: number, seconds: number, tag: string }} OpenInterval end and length in seconds, and the smallest tag of its events */

/** Tag of an interval without an event. It is larger than every tag: the character sorts after all hex digits. */
const NO_TAG = "~";
/**
 * Seconds that are added to times before they are sorted as texts, so that all have the same number of digits. Without
 * them, the time 999 would sort after the time 1000.
 */
const SORT_OFFSET = 1e12;

/**
 * Draw the tag of an event: 16 digits of hex. Tags are compared as texts. Two events share a tag with probability
 * 2^-64.
 * @param {Coins} coins
 */
export function drawTag(coins) {
  return toHex(coins(2), 8);
}

/**
 * Draw the report of an event and make it the pending report of its interval. Before, the caller must have called
 * `queueEndedReports`, and the tag of the event must be smaller than the result of `findSmallestTag`.
 * @param {Device} device
 * @param {AdmissionRequest} request
 * @param {{ timestamp: number, tag: string }} event
 * @param {Coins} coins
 */
export function admitEvent(device, { rules, scope, params }, { timestamp, tag }, coins) {
  const interval = findOpenInterval(device, scope, timestamp); // undefined only if the caller breaks these conditions
  const { metric, epoch, permanent } = scope;
  const report = { ...drawReport(scope, params, coins), permanent };
  if (interval) device.pending[`${metric} ${epoch}`] = { ...interval, metric, epoch, rules, tag, report };
}

/**
 * Return the smallest tag of the events of a metric's open interval. An event with a larger tag changes nothing, so
 * record() need not store it. Special results:
 *
 * - NO_TAG, which is larger than every tag: the interval has no event yet, so the next event is admitted.
 * - The empty text, which is smaller than every tag: the interval has a pending report, and its scope has reported
 *   before. Every further event would lead to a report from the same permanent response, so none needs to replace it.
 * - undefined: an event takes no part, for example because the interval has had its report.
 * @param {Device} device
 * @param {Metric} metric
 * @param {number} now
 * @returns {string | undefined}
 */
export function findSmallestTag(device, metric, now) {
  const rules = findRules(metric, dayOf(now));
  const key = { metric: metric.name, epoch: nameEpoch(metric.epoch, dayOf(now)) };
  const scope = findScope(device, rules, key)?.scope;
  const interval = findOpenInterval(device, scope ?? { ...rules, ...key }, now);
  if (!interval || interval.tag === NO_TAG) return interval?.tag;
  return scope ? "" : interval.tag;
}

/**
 * Decide the pending reports of ended intervals: queue them in the spool, or drop them. The head of this module lists
 * the cases.
 *
 * The scope of a report is looked up again. Another pending report may have begun the scope since this report was
 * drawn, with the permanent response of another value. Two permanent responses of one scope would reveal two values.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 * @param {Coins} coins
 */
export function queueEndedReports(device, spool, now, coins) {
  const ended = listPending(device).filter((pending) => hasEnded(pending, now));
  for (const pending of sortByKey(ended, createSortKey)) {
    const { report, rules, ends, seconds } = pending;
    const assigned = assignScope(device, rules, { ...report, params: device.params[report.params] });
    if (!assigned) continue; // for the type checker: `assignScope` returns null only without a permanent response
    const { scope, params } = assigned;
    // Whether the report was drawn from the permanent response and with the parameters of this scope.
    const isOfScope =
      scope.epoch === report.epoch &&
      scope.cohort === report.cohort &&
      scope.permanent === report.permanent &&
      params.fingerprint === report.params;
    const leavesBefore = scope.interval === "epoch" ? findDayEnd(scope.end) : undefined;
    // True if no page was open until the epoch was over. The report would leave in the next epoch, in which the metric
    // sends one report only. The report of that epoch would then be late as well, and so on. So the report is given up,
    // and counted twice: as recorded, and as given up.
    const isLate = leavesBefore !== undefined && now >= leavesBefore;
    if (isLate) {
      addCount(device, "recorded");
      addCount(device, "given_up");
    } else if (!hasAllReports(device, scope)) {
      // A uniform time of the next interval, so that the time of the upload does not reveal the time of the event.
      // `ends` is later than now only if the interval is far ahead. The report would then wait for as long as the clock
      // was wrong.
      const sendAfter = Math.min(ends, now) + (coins(1)[0] / ONE) * seconds;
      const { metric, params: fingerprint, cohort, bits } = isOfScope ? report : drawReport(scope, params, coins);
      addReportToScope(device, scope);
      const intervalAndEpoch = { interval: scope.interval, epoch: params.epoch };
      spool.reports.push({ metric, params: fingerprint, cohort, bits, sendAfter, leavesBefore, ...intervalAndEpoch });
      addCount(device, "recorded");
    }
    dropPending(pending);
  }
}

/**
 * Return whether a pending report must be decided, because its interval has ended.
 * @param {Device} device
 * @param {number} now
 */
export function hasEndedInterval(device, now) {
  return listPending(device).some((pending) => hasEnded(pending, now));
}

/**
 * Return a key that sorts the pending reports of a metric by the ends of their intervals, the earliest first. Their
 * order decides which report begins a scope.
 * @param {PendingReport} pending
 */
function createSortKey({ metric, ends, epoch }) {
  return `${metric} ${SORT_OFFSET + ends} ${epoch}`;
}

/**
 * Drop a pending report. The record of its interval stays, so that the interval gets no second report.
 * @param {PendingReport} pending
 */
export function dropPending(pending) {
  delete pending.report;
}

/**
 * Return the earliest end of an interval with a pending report, infinity if there is no pending report.
 * @param {Device} device
 */
export function findNextEnd(device) {
  return Math.min(...listPending(device).map(({ ends }) => ends));
}

/**
 * Return the pending reports of all metrics, without the intervals that have had their report.
 * @param {Device} device
 */
export function listPending(device) {
  const pending = Object.values(device.pending).filter(({ report }) => report);
  return /** @type {(PendingReport & Required<Pick<PendingReport, "report" | "rules">>)[]} */ (pending);
}

/**
 * Return the interval of an event, with the smallest tag of its earlier events; undefined if the event takes no part.
 * The head of this module lists the cases. With `interval = "epoch"`, the interval is the first day of the epoch with
 * an event.
 * @param {Device} device
 * @param {Pick<Scope, "metric" | "epoch" | "interval" | "end" | "most">} scope
 * @param {number} now
 * @returns {OpenInterval | undefined}
 */
function findOpenInterval(device, scope, now) {
  const { metric, epoch, interval, end } = scope;
  const epochs = nameEpochs(dayOf(now));
  // Example: the metric had `epoch = "quarter"` this morning, and has a pending report of today in 2026-Q4. A new
  // registry has `epoch = "month"`. A pending report in 2026-11 would be a second report of today.
  const isOpenElsewhere = Object.values(device.pending).some(
    (other) =>
      other.metric === metric &&
      other.epoch !== epoch &&
      epochs.includes(other.epoch) &&
      now < other.ends &&
      !isFarAhead(other, now),
  );
  if (isOpenElsewhere) return undefined;
  const before = device.pending[`${metric} ${epoch}`];
  const calendar = findInterval(interval, now);
  const ends = Math.min(calendar.ends, findDayEnd(end));
  // A report of the last day of the epoch would leave in the next epoch: it leaves at a time of the next day.
  if (interval === "epoch" && ends === findDayEnd(end)) return undefined;
  const fresh = { ...calendar, ends, tag: NO_TAG };
  if (!before || now >= before.ends || isFarAhead(before, now)) {
    return hasAllReports(device, scope) ? undefined : fresh;
  }
  if (!before.report) return undefined; // the interval is decided, and a clock was set back into it
  // A clock that was set back shows an earlier day of the epoch than the day of the pending report. The first day with
  // an event counts, so this event begins the interval anew, and its report replaces the pending one.
  const isEarlierDay = interval === "epoch" && ends <= before.ends - before.seconds;
  return isEarlierDay ? fresh : before;
}

/**
 * Return whether a metric has had `most` reports in an epoch, the number from which its cost was computed. If a changed
 * registry has begun several scopes in the epoch, the reports of all of them are counted.
 * @param {Device} device
 * @param {Pick<Scope, "metric" | "epoch" | "most">} scope
 */
function hasAllReports({ scopes }, { metric, epoch, most }) {
  const ofEpoch = scopes.filter((scope) => scope.metric === metric && scope.epoch === epoch);
  return countReports(ofEpoch) >= most;
}

/**
 * Return whether an interval has ended, or begins so far ahead that the clock was wrong when it began.
 * @param {{ ends: number, seconds: number }} interval
 * @param {number} now
 */
function hasEnded(interval, now) {
  return now >= interval.ends || isFarAhead(interval, now);
}
