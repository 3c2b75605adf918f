// What each metric has answered for, and the response that the next report is drawn from.
//
// A scope begins with its first report. It answers for as many values as the metric has patterns; the next one closes it, and it
// repeats its last report's permanent response. The memory of an epoch is in force on all its days,
// whatever the registry says meanwhile, and is never dropped: a clock that is set back finds it.

import { fromBase64url, base64url } from "./bytes.js";
import { epochDays } from "./calendar.js";
import { mostReports } from "./loss.js";
import { sort } from "./records.js";
import { acceptedParams } from "./registry.js";
import { instantaneousResponse } from "./responses.js";
import { isListed } from "./segments.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Prepared} Prepared */
/** @typedef {import("../documents.js").Scope} Scope */
/** @typedef {import("../documents.js").Terms} Terms */

/**
 * A value as it enters a scope: the keyed name of its bit pattern, and its permanent response
 * where that was computed already.
 * @typedef {object} Entering
 * @property {string} metric
 * @property {Params} params
 * @property {string} epoch
 * @property {number} cohort
 * @property {string} pattern
 * @property {string} [permanent]
 */

/**
 * Return what the registry says on a day.
 * @param {Metric} metric
 * @param {string} day
 * @returns {Terms}
 */
export function termsOf(metric, day) {
  const [first, end] = epochDays(metric.epoch, day);
  const { patterns, interval, segments } = metric;
  const accepted = acceptedParams(metric).map(({ fingerprint }) => fingerprint);
  return { day, first, end, accepted, patterns, interval, most: mostReports(metric), segments };
}

/**
 * Keep the parameters that a registry names.
 * @param {Device} device
 * @param {Iterable<Metric>} metrics
 */
export function keepParams(device, metrics) {
  for (const params of [...metrics].flatMap(acceptedParams)) {
    const { plain = params.fingerprint, segment, ...rest } = params;
    device.params[plain] = { ...rest, fingerprint: plain };
    device.params[params.fingerprint] = params;
  }
}

/**
 * Return the scope after a report of a value; null if it needs the value's permanent response,
 * which is not there. Nothing is kept before the report is sure to leave.
 * @param {Device} device
 * @param {Terms} terms
 * @param {Entering} entering
 * @returns {{ scope: Scope, params: Params } | null}
 */
export function answer(device, terms, entering) {
  const found = inForce(device, terms, entering);
  if (!found) return begun(terms, entering);
  const { params } = found;
  const scope = { ...found.scope, params: params.fingerprint };
  const { admitted, patterns } = scope;
  const isOfScope =
    entering.epoch === scope.epoch && entering.params.permanentFingerprint === scope.response;
  if (isOfScope) scope.closed ||= sizeOf(admitted) > patterns; // they were more before
  if (isOfScope && !scope.closed && entering.pattern !== scope.last) {
    const { pattern, permanent } = entering;
    const isAdmitted = Object.hasOwn(admitted, pattern);
    if (!isAdmitted && sizeOf(admitted) >= patterns) scope.closed = patterns > 1;
    else if (permanent === undefined) return null;
    else {
      scope.admitted = { ...admitted, [pattern]: admitted[pattern] ?? {} };
      Object.assign(scope, { last: pattern, permanent });
    }
  }
  return { scope, params };
}

/**
 * Keep what a scope has answered for, with one report more.
 * @param {Device} device
 * @param {Scope} scope
 */
export function remember(device, scope) {
  const { params, last } = scope;
  const at = placeOf(device, scope);
  const reports = { ...scope.admitted[last] };
  reports[params] = (reports[params] ?? 0) + 1;
  scope.admitted = { ...scope.admitted, [last]: reports };
  device.scopes[at < 0 ? device.scopes.length : at] = scope;
}

/**
 * Return whether a scope repeated one permanent response before the event that leads to this one.
 * @param {Device} device
 * @param {Scope} scope
 */
export function wasLatched(device, scope) {
  const before = device.scopes[placeOf(device, scope)];
  return Boolean(before && (before.closed || scope.patterns === 1));
}

/**
 * Return whether no other value can change what a scope in force answers.
 * @param {Scope} scope
 */
export function isLatched({ closed, patterns }) {
  return closed || patterns === 1;
}

/**
 * Draw a report from the permanent response that a scope shows.
 * @param {Scope} scope
 * @param {Params} params
 * @param {Coins} coins
 * @returns {Prepared}
 */
export function draw({ metric, epoch, cohort, permanent, last }, params, coins) {
  const bits = base64url(instantaneousResponse(fromBase64url(permanent), params, coins));
  return { metric, epoch, params: params.fingerprint, cohort, bits, pattern: last };
}

/**
 * Return the part of a metric that the device has answered for in an epoch, undefined if it may
 * choose. A part stays over changed shares as long as the registry has one of its name.
 * @param {Device} device
 * @param {Metric} metric
 * @param {string} epoch
 */
export function latchedPart(device, metric, epoch) {
  const known = device.scopes.filter((each) => each.metric === metric.name && each.epoch === epoch);
  const responses = known.map((scope) => scope.response).sort();
  const partOf = (/** @type {string} */ response) =>
    metric.parts.find(({ params }) => params.permanentFingerprint === response);
  return responses.map(partOf).find((part) => part);
}

/**
 * Return the scope that is in force, as the registry leaves it, with the parameters of its reports;
 * undefined if a new one begins. A segment that is not listed any more is not told any more. For life
 * it is one whose permanent responses are the metric's; p, q, patterns and interval may change.
 * @param {Device} device
 * @param {Terms} terms
 * @param {Pick<Entering, "metric" | "epoch">} entering
 */
export function inForce(device, terms, { metric, epoch }) {
  const { day, accepted, segments, patterns, interval, most } = terms;
  for (const scope of sort(scopesOn(device, metric, day), order)) {
    const own = accepted.find((each) => device.params[each].permanentFingerprint === scope.response);
    const fingerprint = scope.epoch ? scope.params : epoch ? undefined : own;
    if (!fingerprint) continue;
    const { plain = fingerprint, segment } = device.params[fingerprint];
    const isTold = isListed(segment, segments);
    const changes = scope.epoch
      ? { patterns: Math.min(scope.patterns, patterns) }
      : { patterns, interval, most };
    return { scope: { ...scope, ...changes }, params: device.params[isTold ? fingerprint : plain] };
  }
  return undefined;
}

/**
 * Return whether a device is in an epoch in which a metric has answered; never for life. It then
 * belongs to the metric's sample until the epoch ends.
 * @param {Device} device
 * @param {string} metric
 * @param {string} day
 */
export function isBegun(device, metric, day) {
  return scopesOn(device, metric, day).some(({ epoch }) => epoch);
}

/**
 * @param {Device} device
 * @param {string} metric
 * @param {string} day
 */
function scopesOn({ scopes }, metric, day) {
  return scopes.filter((each) => each.metric === metric && each.first <= day && day <= each.end);
}

/**
 * @param {Device} device
 * @param {Scope} scope
 */
function placeOf({ scopes }, { metric, epoch, response }) {
  return scopes.findIndex(
    (each) => each.metric === metric && each.epoch === epoch && each.response === response,
  );
}

/** @param {Record<string, unknown>} record */
function sizeOf(record) {
  return Object.keys(record).length;
}

/** @param {Scope} scope */
function order({ end, first, response }) {
  return `${end} ${first} ${response}`;
}

/**
 * @param {Terms} terms
 * @param {Entering} entering
 */
function begun(terms, { metric, params, epoch, cohort, pattern, permanent }) {
  if (permanent === undefined) return null;
  const { day, accepted, segments, ...kept } = terms;
  /** @type {Scope} */
  const scope = {
    ...kept,
    metric,
    epoch,
    response: params.permanentFingerprint,
    params: params.fingerprint,
    cohort,
    permanent,
    admitted: { [pattern]: {} },
    last: pattern,
    closed: false,
  };
  return { scope, params };
}
