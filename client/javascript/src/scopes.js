// Scopes: memoized permanent responses.
//
// A scope is one metric in one epoch under one permanent fingerprint, on one device. The permanent response is the
// value with noise that a device draws once for a scope. The permanent fingerprint is a hash of the parameters that
// determine the permanent response. A stored scope has it under the key `response`.
//
// A scope begins with its first report. Every later report of the scope repeats the permanent response of the first
// reported value, even if the value of the device has changed since. So a scope costs the privacy loss of one value,
// however often the value changes.
//
//     scope of "engine" in 2026-Q4    first report: duckduckgo    permanent response A
//                                     later reports: A with new noise, also for another value
//     scope of "engine" in 2027-Q1    new cohort, new coins: the next reported value gives response B
//
// A report is assigned to a scope when its interval ends (assignScope). In this order:
//
// 1. The device has a scope of an epoch that contains the day. The report belongs to this scope, also if the registry
//    has changed since, and has the parameters of the scope's last report, because the cost of the scope was computed
//    from them.
// 2. The device has a scope for life, and the registry still has its permanent fingerprint. The report belongs to this
//    scope, and has p, q and interval of the registry: a scope without an end would otherwise keep them for good.
// 3. Otherwise the report begins a new scope, with its own parameters.
//
// In the cases 1 and 2 the report has no segment if the registry no longer lists the segment of the device.
//
// A scope is never dropped. If the clock is set back, the device finds the scope of that day again. Without the scope
// it would draw a second permanent response of the epoch, perhaps of another value, and reveal more than the cost.

import { fromBase64url, toBase64url } from "./bytes.js";
import { sortByKey } from "./collections.js";
import { computeMostReports } from "./loss.js";
import { findEpochDays } from "./periods.js";
import { drawInstantaneousResponse } from "./randomizer.js";
import { listAcceptedParams } from "./registry.js";
import { isListed } from "./segments.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").MetricRules} MetricRules */
/** @typedef {import("../documents.js").PreparedReport} PreparedReport */
/** @typedef {import("../documents.js").Scope} Scope */

/**
 * A value of one metric, prepared for a scope that may begin with it.
 * @typedef {object} PreparedValue
 * @property {string} metric
 * @property {Params} params parameter set of the metric, or of the device's part. (A metric with parts, such as the
 *   first three letters and the whole text, has one parameter set for each; a device reports one part.)
 * @property {string} epoch
 * @property {number} cohort
 * @property {string} [permanent] the permanent response in base64url. It is computed only if a scope begins with the
 *   value, because the computation takes long
 */

/** @typedef {{ scope: Scope, params: Params }} ScopeWithParams a scope and the parameters of its next report */

/**
 * Return the rules of a metric on a day: the entry of the registry, with the first and last day of the epoch and the
 * largest number of reports. A pending report keeps these rules until its interval ends, also if the registry changes.
 * @param {Metric} metric
 * @param {string} day
 * @returns {MetricRules}
 */
export function findRules(metric, day) {
  const [first, end] = findEpochDays(metric.epoch, day);
  const { interval, segments } = metric;
  const accepted = listAcceptedParams(metric).map(({ fingerprint }) => fingerprint);
  return { day, first, end, accepted, interval, most: computeMostReports(metric), segments };
}

/**
 * Store the parameter sets of a registry by their fingerprints, each with and without the segment of the device. Scopes
 * that began under an earlier registry need the sets of that registry for their reports, so no set is removed.
 * @param {Device} device
 * @param {Iterable<Metric>} metrics
 */
export function storeParams(device, metrics) {
  for (const params of [...metrics].flatMap(listAcceptedParams)) {
    // `plain` is the fingerprint of the set without the segment. A set without a segment has no `plain`.
    const { plain = params.fingerprint, segment, ...withoutSegment } = params;
    device.params[plain] = { ...withoutSegment, fingerprint: plain };
    device.params[params.fingerprint] = params;
  }
}

/**
 * Return the scope of a metric's next report: the scope of the device (cases 1 and 2 of the head of this module), or a
 * new scope (case 3). Return null if a new scope is necessary and the value has no permanent response yet. The function
 * stores nothing, because another event of the interval may still become the report.
 * @param {Device} device
 * @param {MetricRules} rules
 * @param {PreparedValue} value
 * @returns {ScopeWithParams | null}
 */
export function assignScope(device, rules, value) {
  const current = findScope(device, rules, value);
  if (current) {
    const { scope, params } = current;
    return { scope: { ...scope, params: params.fingerprint }, params };
  }
  return value.permanent === undefined ? null : beginScope(rules, value, value.permanent);
}

/**
 * Add one report to the number of reports of a scope, and store the scope. A scope without a report begins here.
 * @param {Device} device
 * @param {Scope} scope
 */
export function addReportToScope(device, scope) {
  const { params, reports } = scope;
  const index = findScopeIndex(device, scope);
  const after = { ...scope, reports: { ...reports, [params]: (reports[params] ?? 0) + 1 } };
  device.scopes[index < 0 ? device.scopes.length : index] = after;
}

/**
 * Draw a report of a scope: the permanent response of the scope with new noise (the instantaneous response).
 * @param {Scope} scope
 * @param {Params} params
 * @param {Coins} coins
 * @returns {PreparedReport}
 */
export function drawReport({ metric, epoch, cohort, permanent }, params, coins) {
  const bits = toBase64url(drawInstantaneousResponse(fromBase64url(permanent), params, coins));
  return { metric, epoch, params: params.fingerprint, cohort, bits };
}

/**
 * Return the part of a metric that the device has reported in an epoch. Return undefined if there is none, so that the
 * secret chooses a part.
 *
 * A new registry may give other shares of the devices to the parts, and the secret would then choose another part. But
 * a second part would begin a second scope in the epoch, with a loss of its own. So the device keeps its part as long
 * as the registry has it.
 * @param {Device} device
 * @param {Metric} metric
 * @param {string} epoch
 */
export function findMemoizedPart(device, metric, epoch) {
  const scopes = device.scopes.filter((scope) => scope.metric === metric.name && scope.epoch === epoch);
  // Several scopes exist if the registry has changed within the epoch. The smallest fingerprint decides, as in the
  // client in Python, so that both choose the same part.
  const fingerprints = scopes.map((scope) => scope.response).sort();
  const findPart = (/** @type {string} */ fingerprint) =>
    metric.parts.find(({ params }) => params.permanentFingerprint === fingerprint);
  return fingerprints.map(findPart).find((part) => part);
}

/**
 * Return the scope of the device for a metric's next report, and the parameters of this report (cases 1 and 2 of the
 * head of this module). Return undefined if the report begins a new scope.
 * @param {Device} device
 * @param {MetricRules} rules
 * @param {Pick<PreparedValue, "metric" | "epoch">} value
 * @returns {ScopeWithParams | undefined}
 */
export function findScope(device, rules, { metric, epoch }) {
  const { day, accepted, segments, interval, most } = rules;
  for (const scope of sortByKey(listScopesOn(device, metric, day), createSortKey)) {
    // The parameter set of the registry with the permanent fingerprint of the scope, for case 2.
    const fromRegistry = accepted.find(
      (fingerprint) => device.params[fingerprint].permanentFingerprint === scope.response,
    );
    // A metric for life has an empty `epoch`. If the metric was for life and now has shorter epochs, the scope
    // for life gets no further report.
    const fingerprintForLife = epoch ? undefined : fromRegistry;
    const fingerprint = scope.epoch ? scope.params : fingerprintForLife;
    if (!fingerprint) continue;
    const { plain = fingerprint, segment } = device.params[fingerprint];
    const params = device.params[isListed(segment, segments) ? fingerprint : plain];
    return { scope: scope.epoch ? scope : { ...scope, interval, most }, params };
  }
  return undefined;
}

/**
 * Return whether a metric has reported in an epoch that contains a day; never true for life. The device then belongs to
 * the sample of the metric until the epoch ends, also if a new registry has a lower sampling rate.
 * @param {Device} device
 * @param {string} metric
 * @param {string} day
 */
export function hasReported(device, metric, day) {
  return listScopesOn(device, metric, day).some(({ epoch }) => epoch);
}

/**
 * Return the scopes of a metric whose epoch contains a day.
 * @param {Device} device
 * @param {string} metric
 * @param {string} day
 */
function listScopesOn({ scopes }, metric, day) {
  return scopes.filter((scope) => scope.metric === metric && scope.first <= day && day <= scope.end);
}

/**
 * Return the index of a scope among the stored ones, -1 if it is not stored yet. Metric, epoch and permanent
 * fingerprint identify a scope.
 * @param {Device} device
 * @param {Scope} scope
 */
function findScopeIndex({ scopes }, { metric, epoch, response }) {
  return scopes.findIndex(
    (scope) => scope.metric === metric && scope.epoch === epoch && scope.response === response,
  );
}

/**
 * Return the sort key of a scope. Two epochs may contain a day if a registry has changed their length. The scope whose
 * epoch ends first then comes first, in every tab and in the client in Python.
 * @param {Scope} scope
 */
function createSortKey({ end, first, response }) {
  return `${end} ${first} ${response}`;
}

/**
 * Return a new scope that begins with a value. It has no report yet, and is not stored.
 * @param {MetricRules} rules
 * @param {PreparedValue} value
 * @param {string} permanent
 * @returns {ScopeWithParams}
 */
function beginScope({ first, end, interval, most }, { metric, params, epoch, cohort }, permanent) {
  const scope = {
    ...{ first, end, interval, most, metric, epoch, cohort, permanent },
    response: params.permanentFingerprint,
    params: params.fingerprint,
    reports: {},
  };
  return { scope, params };
}
