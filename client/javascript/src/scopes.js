// What each metric has answered for, and the response that the next report is drawn from.
//
// A scope answers for as many values as the metric has patterns; the next one closes it, and it
// repeats its last report's permanent response. The memory of an epoch is in force on all its days,
// whatever the registry says meanwhile, and is never dropped: a clock that is set back finds it.

import { fromBase64url, base64url } from "./bytes.js";
import { epochDays } from "./calendar.js";
import { acceptedParams } from "./registry.js";
import { instantaneousResponse } from "./responses.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("./device.js").Device} Device */
/** @typedef {import("./device.js").Scope} Scope */

/**
 * A value as it enters a scope: the keyed name of its bit pattern, and its permanent response
 * where that was computed already.
 * @typedef {object} Entering
 * @property {Params} params
 * @property {string} epoch
 * @property {number} cohort
 * @property {string} pattern
 * @property {string} [permanent]
 */

/**
 * A noisy report, with what the ledger must know of it.
 * @typedef {{ metric: string, epoch: string, params: string, cohort: number, bits: string, pattern: string }} Prepared
 */

/**
 * Return the scope after a value; null if it needs the value's permanent response, which is not
 * there. Nothing is kept yet.
 * @param {Device} device
 * @param {Metric} metric
 * @param {Entering} entering
 * @param {string} day
 * @returns {{ scope: Scope, params: Params } | null}
 */
export function answer(device, metric, entering, day) {
  const found = inForce(device, metric, day);
  if (!found) return begun(metric, entering, day);
  const { params } = found;
  const scope = { ...found.scope, params: params.fingerprint };
  if (!scope.epoch) Object.assign(scope, { patterns: metric.patterns, interval: metric.interval });
  scope.patterns = Math.min(scope.patterns, metric.patterns);
  scope.closed ||= scope.admitted.length > scope.patterns; // the registry asks for fewer than before
  const isOfScope =
    entering.epoch === scope.epoch && entering.params.permanentFingerprint === scope.response;
  if (isOfScope && !scope.closed && entering.pattern !== scope.last) {
    const { pattern, permanent } = entering;
    const isAdmitted = scope.admitted.includes(pattern);
    if (!isAdmitted && scope.admitted.length >= scope.patterns) scope.closed = true;
    else if (permanent === undefined) return null;
    else {
      const admitted = isAdmitted ? scope.admitted : [...scope.admitted, pattern];
      Object.assign(scope, { admitted, last: pattern, permanent });
    }
  }
  return { scope, params };
}

/**
 * Keep what a scope has answered for.
 * @param {Device} device
 * @param {Scope} scope
 * @param {Params} params
 */
export function remember(device, scope, params) {
  const { metric, epoch, response } = scope;
  const at = device.scopes.findIndex(
    (each) => each.metric === metric && each.epoch === epoch && each.response === response,
  );
  device.scopes[at < 0 ? device.scopes.length : at] = scope;
  device.params[params.fingerprint] = params;
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
  const own = metric.parts.map(({ params }) => params.permanentFingerprint);
  const latched = responses.find((response) => own.includes(response));
  return latched === undefined ? undefined : metric.parts[own.indexOf(latched)];
}

/**
 * Return the scope that is in force with the parameters of its reports, undefined if a new one
 * begins. For life it is one whose permanent responses are the metric's; p and q may change.
 * @param {Device} device
 * @param {Metric} metric
 * @param {string} day
 */
export function inForce(device, metric, day) {
  const known = device.scopes.filter(
    (scope) => scope.metric === metric.name && scope.first <= day && day <= scope.end,
  );
  known.sort((a, b) => (order(a) < order(b) ? -1 : 1));
  for (const scope of known) {
    const own = acceptedParams(metric).find((each) => each.permanentFingerprint === scope.response);
    const params = scope.epoch ? device.params[scope.params] : metric.epoch === "life" && own;
    if (params) return { scope, params };
  }
  return undefined;
}

/** @param {Scope} scope */
function order({ end, first, response }) {
  return `${end} ${first} ${response}`;
}

/**
 * @param {Metric} metric
 * @param {Entering} entering
 * @param {string} day
 */
function begun(metric, { params, epoch, cohort, pattern, permanent }, day) {
  if (permanent === undefined) return null;
  const [first, end] = epochDays(metric.epoch, day);
  const { name, patterns, interval } = metric;
  /** @type {Scope} */
  const scope = {
    metric: name,
    epoch,
    response: params.permanentFingerprint,
    first,
    end,
    params: params.fingerprint,
    cohort,
    permanent,
    admitted: [pattern],
    last: pattern,
    closed: false,
    patterns,
    interval,
  };
  return { scope, params };
}
