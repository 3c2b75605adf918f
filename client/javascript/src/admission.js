// Admission of events to the one report of an interval.
//
// An event is one call of record(). A metric sends at most one report in an interval: a uniform choice among the
// events of the interval. Each event draws a tag, a random integer of 64 bits, and the event with the smallest tag
// is the pending report. So the choice is uniform without a counter of events, also over tabs and restarts.
//
//     interval is open       event a, tag 71    pending report: a
//                            event b, tag 24    pending report: b, because 24 < 71
//                            event c, tag 58    pending report: still b; a and c leave no trace
//     interval has ended     b is admitted to its scope and moves to the spool; it may leave at a random time of
//                            the next interval
//
// (A scope is one metric in one epoch under one permanent response.) The record of an open interval is
// `device.pending["METRIC EPOCH"]`, with the end and the length of the interval, the smallest tag and the pending
// report. After the decision the record stays without its report, and remembers that the interval has had a report.
//
// An interval is "far ahead" if it begins more than its own length after the present time: the clock was wrong when
// the interval began, or is wrong now.
//
// An event is entered into an interval by these rules (findOpenInterval):
//
//     case                                                  the event
//     a registry has changed the length of the epochs,      takes no part: the two epochs would have two reports in
//     and an interval of the other epoch is open            one interval
//     `interval = "epoch"`, last day of the epoch           takes no part: its report would leave in the next epoch
//     no record, or its interval is over or far ahead       begins an interval, unless its scope has had all reports
//                                                           that the cost assumes
//     the interval is open, its report is decided           takes no part (a clock was set back)
//     `interval = "epoch"`, and a later day than the        replaces the pending report: the first day with an event
//     event's has the pending report                        counts
//     the interval is open, its report is pending           competes by its tag
//
// The pending report of an interval that is over or far ahead is decided by these rules (queueEndedReports):
//
//     case                                                  the report
//     its scope has had all reports that the cost assumes   is dropped
//     `interval = "epoch"`, and the epoch is over           is given up and counted
//     it was drawn from another permanent response than     is drawn again from the response of the scope
//     the response of its scope
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

/** Tag of an interval without an event. The character sorts after every tag, which consists of hex digits. */
const NO_TAG = "~";
/** Seconds that are added to times before they are sorted as texts, so that all have the same number of digits. */
const SORT_OFFSET = 1e12;

/**
 * Draw the tag of an event: 16 digits of hex. Two events share a tag with probability 2^-64.
 * @param {Coins} coins
 */
export function drawTag(coins) {
  return toHex(coins(2), 8);
}

/**
 * Make the report of an event the pending report of its interval. The caller must have released the pending
 * reports of ended intervals, and the event must have a smaller tag than `findSmallestTag` returns.
 * @param {Device} device
 * @param {AdmissionRequest} request
 * @param {{ timestamp: number, tag: string }} event
 * @param {Coins} coins
 */
export function admitEvent(device, { rules, scope, params }, { timestamp, tag }, coins) {
  const interval = findOpenInterval(device, scope, timestamp);
  const { metric, epoch, permanent } = scope;
  const report = { ...drawReport(scope, params, coins), permanent };
  if (interval) device.pending[`${metric} ${epoch}`] = { ...interval, metric, epoch, rules, tag, report };
}

/**
 * Return the smallest tag of a metric's open interval. An event with a larger tag changes nothing, so record()
 * need not store it. Special results:
 *
 * - NO_TAG, which is above every tag: the interval has no event yet.
 * - The empty text, which is below every tag: the interval has a pending report, and its scope has reported before.
 *   All events lead to the same permanent response, so the first event of the interval is as good as any other.
 * - undefined: the interval has had its report.
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
 * Decide the pending reports of ended intervals, and queue them in the spool. The head of this module lists the cases.
 *
 * The scope is looked up again, because it may have begun or changed since the report was drawn.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 * @param {Coins} coins
 */
export function queueEndedReports(device, spool, now, coins) {
  for (const pending of sortByKey(Object.values(device.pending), createSortKey)) {
    const { report, rules, ends, seconds } = pending;
    if (!report || !rules || !hasEnded(pending, now)) continue;
    const next = assignScope(device, rules, { ...report, params: device.params[report.params] });
    if (!next) continue; // for the type checker: a pending report has its permanent response
    const { scope, params } = next;
    // False if an earlier pending report has begun the scope with another value since this report was drawn.
    const isOfScope =
      scope.epoch === report.epoch &&
      scope.cohort === report.cohort &&
      scope.permanent === report.permanent &&
      params.fingerprint === report.params;
    const leavesBefore = scope.interval === "epoch" ? findDayEnd(scope.end) : undefined;
    // True if no page was open until the epoch was over. In the next epoch the report would take the turn of that
    // epoch's report, which would then be late as well. So the report is given up, and both events are counted.
    const isLate = leavesBefore !== undefined && now >= leavesBefore;
    if (isLate) {
      addCount(device, "recorded");
      addCount(device, "given_up");
    } else if (!hasAllReports(device, scope)) {
      // A uniform time of the next interval. `ends` is far ahead only if the clock was wrong; `now` limits it.
      const sendAfter = Math.min(ends, now) + (coins(1)[0] / ONE) * seconds;
      const { metric, params: fingerprint, cohort, bits } = isOfScope ? report : drawReport(scope, params, coins);
      addReportToScope(device, scope);
      const pace = { interval: scope.interval, epoch: params.epoch };
      spool.reports.push({ metric, params: fingerprint, cohort, bits, sendAfter, leavesBefore, ...pace });
      addCount(device, "recorded");
    }
    dropPending(pending);
  }
}

/**
 * Return whether any pending report can be released, because its interval is over.
 * @param {Device} device
 * @param {number} now
 */
export function hasEndedInterval({ pending }, now) {
  return Object.values(pending).some((interval) => interval.report && hasEnded(interval, now));
}

/**
 * Return a key that sorts the pending reports of a metric by the ends of their intervals.
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
 * Return when the next interval with a pending report ends; infinity if there is no pending report.
 * @param {Device} device
 */
export function findNextEnd(device) {
  const pending = Object.values(device.pending).filter(({ report }) => report);
  return Math.min(...pending.map(({ ends }) => ends));
}

/**
 * Return the interval of an event, with the smallest tag of its earlier events; undefined if the event takes no part.
 * The head of this module lists the cases. With `interval = "epoch"`, the interval is the first day with an event.
 * @param {Device} device
 * @param {Pick<Scope, "metric" | "epoch" | "interval" | "end" | "most">} scope
 * @param {number} now
 * @returns {OpenInterval | undefined}
 */
function findOpenInterval(device, scope, now) {
  const { metric, epoch, interval, end } = scope;
  const epochs = nameEpochs(dayOf(now));
  // An earlier registry had epochs of another length, and the interval of such an epoch is open. It ends first, or
  // two reports of the metric would leave in one interval.
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
  // A report about the last day of the epoch would leave in the next epoch.
  if (interval === "epoch" && ends === findDayEnd(end)) return undefined;
  const fresh = { ...calendar, ends, tag: NO_TAG };
  if (!before || now >= before.ends || isFarAhead(before, now)) {
    return hasAllReports(device, scope) ? undefined : fresh;
  }
  if (!before.report) return undefined; // also of a clock that was set back into the interval
  // A clock that was set back shows an earlier day of the epoch. The first day with an event counts, so the event
  // replaces the pending report of the later day.
  const isEarlierDay = interval === "epoch" && ends <= before.ends - before.seconds;
  return isEarlierDay ? fresh : before;
}

/**
 * Return whether an epoch has had all reports that the cost of its scope assumes. A registry that has changed may
 * have begun several scopes in the epoch; their reports count together.
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
