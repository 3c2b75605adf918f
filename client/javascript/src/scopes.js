// Scopes: memoized permanent responses.
//
// A scope is one metric in one epoch under one permanent fingerprint, on one device. (The permanent fingerprint is a
// hash of the parameters that determine the permanent response. In stored scopes its key is `response`.)
//
// A scope begins with its first report. Every later report of the scope repeats the permanent response of the first
// reported value, even if the value of the device has changed since. So the reports of a scope reveal one value only.
//
//     scope of "engine" in 2026-Q4    first report: duckduckgo    permanent response A
//                                     later reports: A with new noise, whatever is recorded
//     scope of "engine" in 2027-Q1    new cohort, new coins: the next reported value gives response B
//
// A report is assigned to a scope when its interval ends (assignScope). In this order:
//
// 1. The device has a scope of an epoch that contains the day. The report belongs to this scope, also if the registry
//    has changed since, and has the parameters of the scope's last report: the cost was computed from them.
// 2. The device has a scope for life, and the registry still has its permanent fingerprint. The report belongs to this
//    scope, and has p, q and interval of the registry: a scope without an end would otherwise keep them for good.
// 3. Otherwise the report begins a new scope, with its own parameters.
//
// A segment that the registry no longer lists is not sent any more. A scope is never dropped. If the clock is set back,
// the device finds the old scope and draws no second permanent response.

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
 * @property {Params} params parameter set of the device's part
 * @property {string} epoch
 * @property {number} cohort
 * @property {string} [permanent] the permanent response in base64url; absent until a scope needs it
 */

/** @typedef {{ scope: Scope, params: Params }} ScopeWithParams a scope and the parameters of its next report */

/**
 * Return the rules of a metric on a day. A pending report keeps these rules until its interval ends, also if the
 * registry changes.
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
 * Store the parameter sets of a registry, with and without the segment of the device. Reports of scopes that an
 * earlier registry began need the sets of that registry, so no set is removed.
 * @param {Device} device
 * @param {Iterable<Metric>} metrics
 */
export function storeParams(device, metrics) {
  for (const params of [...metrics].flatMap(listAcceptedParams)) {
    const { plain = params.fingerprint, segment, ...withoutSegment } = params;
    device.params[plain] = { ...withoutSegment, fingerprint: plain };
    device.params[params.fingerprint] = params;
  }
}

/**
 * Return the scope of the next report: the scope in force, or a new scope. Return null if a new scope is necessary
 * and the permanent response of the value has not been drawn yet. The function stores nothing, because another event
 * of the interval may still become the report.
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
 * Store a scope with one report more than before.
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
 * Draw a report of a scope: its permanent response with new noise.
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
 * Return the part of a metric that the device has reported in an epoch, undefined if the secret still chooses. A
 * new registry may have other shares of the parts. The device keeps its part as long as the registry has it, or
 * a second part would begin a second scope.
 * @param {Device} device
 * @param {Metric} metric
 * @param {string} epoch
 */
export function findMemoizedPart(device, metric, epoch) {
  const scopes = device.scopes.filter((scope) => scope.metric === metric.name && scope.epoch === epoch);
  // Several scopes exist if the registry has changed within the epoch. The smallest fingerprint decides, as in Python.
  const fingerprints = scopes.map((scope) => scope.response).sort();
  const findPart = (/** @type {string} */ fingerprint) =>
    metric.parts.find(({ params }) => params.permanentFingerprint === fingerprint);
  return fingerprints.map(findPart).find((part) => part);
}

/**
 * Return the scope of a metric's next report, and the parameters of this report; undefined if the report begins a new
 * scope. The head of this module lists the cases.
 * @param {Device} device
 * @param {MetricRules} rules
 * @param {Pick<PreparedValue, "metric" | "epoch">} value
 * @returns {ScopeWithParams | undefined}
 */
export function findScope(device, rules, { metric, epoch }) {
  const { day, accepted, segments, interval, most } = rules;
  for (const scope of sortByKey(listScopesOn(device, metric, day), createSortKey)) {
    const fromRegistry = accepted.find(
      (fingerprint) => device.params[fingerprint].permanentFingerprint === scope.response,
    );
    // If the epoch of a metric was "life" and is shorter now, the scope for life is not continued.
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
 * Return whether the metric has reported in an epoch that contains the day; never true for life. The device
 * then belongs to the metric's sample until the epoch ends.
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
 * Return the index of a stored scope, -1 if the scope is new.
 * @param {Device} device
 * @param {Scope} scope
 */
function findScopeIndex({ scopes }, { metric, epoch, response }) {
  return scopes.findIndex(
    (scope) => scope.metric === metric && scope.epoch === epoch && scope.response === response,
  );
}

/**
 * Return the sort key of a scope. Of several scopes on a day, the scope whose epoch ends first is in force.
 * @param {Scope} scope
 */
function createSortKey({ end, first, response }) {
  return `${end} ${first} ${response}`;
}

/**
 * Return a scope that begins with a value. It has no report yet.
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
