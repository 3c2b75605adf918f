// Admission of events to the one report of an interval.
//
// A metric sends at most one report in an interval: a uniform choice among the events. Each event draws a
// random 64-bit tag, and the event with the smallest tag is the pending report. When the interval has
// ended, the pending report is admitted to its scope and may leave at a random time of the next interval.
// An event that was not chosen leaves no trace.
//
// - An interval belongs to one epoch and ends with the epoch at the latest.
// - A clock that is set back does not reopen an interval that has had its report.
// - A scope never has more reports than its cost assumes, whatever clocks and registries do.

import { hex } from "./bytes.js";
import { afterDay, dayOf, epochAt, epochsAt, intervalAt, isFarAhead } from "./calendar.js";
import { sortByKey } from "./collections.js";
import { ONE } from "./params.js";
import { reportCount } from "./privacy_spent.js";
import { drawReport, rulesOn, scopeInForce, scopeOfNextReport, storeReportOf } from "./scopes.js";
import { count } from "./state.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").MetricRules} MetricRules */
/** @typedef {import("../documents.js").PendingReport} PendingReport */
/** @typedef {import("../documents.js").Scope} Scope */
/** @typedef {import("../documents.js").Spool} Spool */
/** @typedef {import("./scopes.js").ScopeWithParams} ScopeWithParams */
/** @typedef {ScopeWithParams & { rules: MetricRules }} AdmissionRequest a scope as it would be after the report */
/** @typedef {{ ends: number, seconds: number, tag: string }} OpenInterval an open interval, and its smallest tag */

const NO_TAG = "~"; // sorts after every tag
const FAR = 1e12; // added to timestamps, so that all have the same number of digits

/**
 * Draw the tag of an event. It has 64 bits, so two events share a tag with probability 2^-64.
 * @param {Coins} coins
 */
export function drawTag(coins) {
  return hex(coins(2), 8);
}

/**
 * Make the report of an event the pending report of its interval. The event must have a smaller tag than
 * `smallestTag`, and the pending reports of ended intervals must have been released.
 * @param {Device} device
 * @param {AdmissionRequest} request
 * @param {{ timestamp: number, tag: string }} event
 * @param {Coins} coins
 */
export function admit(device, { rules, scope, params }, { timestamp, tag }, coins) {
  const interval = openInterval(device, scope, timestamp);
  const { metric, epoch, permanent } = scope;
  const report = { ...drawReport(scope, params, coins), permanent };
  if (interval) device.pending[`${metric} ${epoch}`] = { ...interval, metric, epoch, rules, tag, report };
}

/**
 * Return the smallest tag of a metric's open interval. An event with a larger tag changes nothing.
 *
 * - The empty text, which is below every tag: the scope is memoized and has a pending report. All events lead
 *   to the same permanent response, so the first event of the interval is as good as any other.
 * - NO_TAG, which is above every tag: the interval has no event yet.
 * - undefined: the interval has had its report.
 * @param {Device} device
 * @param {Metric} metric
 * @param {number} now
 * @returns {string | undefined}
 */
export function smallestTag(device, metric, now) {
  const rules = rulesOn(metric, dayOf(now));
  const key = { metric: metric.name, epoch: epochAt(metric.epoch, dayOf(now)) };
  const scope = scopeInForce(device, rules, key)?.scope;
  const interval = openInterval(device, scope ?? { ...rules, ...key }, now);
  if (!interval || interval.tag === NO_TAG) return interval?.tag;
  return scope ? "" : interval.tag;
}

/**
 * Move the pending reports of ended intervals into the spool.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 * @param {Coins} coins
 */
export function release(device, spool, now, coins) {
  for (const pending of sortByKey(Object.values(device.pending), sortKey)) {
    const { report, rules, ends, seconds } = pending;
    if (!report || !rules || !isOver(pending, now)) continue;
    const next = scopeOfNextReport(device, rules, { ...report, params: device.params[report.params] });
    if (!next) continue; // cannot happen: the pending report has its permanent response
    const { scope, params } = next;
    // An earlier pending report may have begun another scope since this report was drawn.
    const isOfScope =
      scope.epoch === report.epoch &&
      scope.cohort === report.cohort &&
      scope.permanent === report.permanent &&
      params.fingerprint === report.params;
    const leavesBefore = scope.interval === "epoch" ? afterDay(scope.end) : undefined;
    // The page was closed since. In the next epoch the report would take the turn of that epoch's report,
    // which would be late in its turn.
    const isLate = leavesBefore !== undefined && now >= leavesBefore;
    if (isLate) for (const name of ["recorded", "given_up"]) count(device, name);
    if (!isLate && !isFull(device, scope)) {
      const sendAfter = Math.min(ends, now) + (coins(1)[0] / ONE) * seconds;
      const { metric, params: fingerprint, cohort, bits } = isOfScope ? report : drawReport(scope, params, coins);
      storeReportOf(device, scope);
      const pace = { interval: scope.interval, epoch: params.epoch };
      spool.reports.push({ metric, params: fingerprint, cohort, bits, sendAfter, leavesBefore, ...pace });
      count(device, "recorded");
    }
    dropPending(pending);
  }
}

/**
 * Return whether the interval of any pending report is over.
 * @param {Device} device
 * @param {number} now
 */
export function canRelease({ pending }, now) {
  return Object.values(pending).some((interval) => interval.report && isOver(interval, now));
}

/** @param {PendingReport} pending */
function sortKey({ metric, ends, epoch }) {
  return `${metric} ${FAR + ends} ${epoch}`;
}

/**
 * Drop a pending report. The record that its interval has been used stays.
 * @param {PendingReport} pending
 */
export function dropPending(pending) {
  delete pending.report;
}

/**
 * Return when the next interval with a pending report ends; infinity if there is no pending report.
 * @param {Device} device
 */
export function nextEnd(device) {
  const pending = Object.values(device.pending).filter(({ report }) => report);
  return Math.min(...pending.map(({ ends }) => ends));
}

/**
 * Return the interval that contains an event; undefined if this interval has had its report. With
 * `interval = "epoch"`, the interval is the first day with an event.
 * @param {Device} device
 * @param {Pick<Scope, "metric" | "epoch" | "interval" | "end" | "most">} scope
 * @param {number} now
 * @returns {OpenInterval | undefined}
 */
function openInterval(device, scope, now) {
  const { metric, epoch, interval, end } = scope;
  const epochs = epochsAt(dayOf(now));
  // An earlier registry had another epoch: its open interval ends first, or two reports would leave.
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
  const calendar = intervalAt(interval, now);
  const ends = Math.min(calendar.ends, afterDay(end));
  // A report of the last day of the epoch would leave in the next epoch.
  if (interval === "epoch" && ends === afterDay(end)) return undefined;
  const fresh = { ...calendar, ends, tag: NO_TAG };
  if (!before || now >= before.ends || isFarAhead(before, now)) {
    return isFull(device, scope) ? undefined : fresh;
  }
  if (!before.report) return undefined;
  // A clock that was set back shows an earlier day of the epoch, which counts instead.
  const isEarlierDay = interval === "epoch" && ends <= before.ends - before.seconds;
  return isEarlierDay ? fresh : before;
}

/**
 * Return whether an epoch has had all reports that the cost of its scope assumes.
 * @param {Device} device
 * @param {Pick<Scope, "metric" | "epoch" | "most">} scope
 */
function isFull({ scopes }, { metric, epoch, most }) {
  const ofEpoch = scopes.filter((scope) => scope.metric === metric && scope.epoch === epoch);
  return reportCount(ofEpoch) >= most;
}

/**
 * Return whether an interval has ended, or begins so far ahead that the clock was wrong when it began.
 * @param {{ ends: number, seconds: number }} interval
 * @param {number} now
 */
function isOver(interval, now) {
  return now >= interval.ends || isFarAhead(interval, now);
}
