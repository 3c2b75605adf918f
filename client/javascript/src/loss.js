// Privacy loss in nats, of one device's reports of one value, and what a metric reserves for it.

import { dayOf, epochAt } from "./calendar.js";
import { worstDifference } from "./encodings.js";
import { ONE } from "./params.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Params} Params */

/** @type {Record<string, number>} */
const MOST_DAYS = { year: 366, quarter: 92, month: 31 };

/**
 * Return the loss of reports of one value under one permanent response, counted by parameters
 * that differ in p and q only ([EPK14] Theorems 1 and 2; n in between).
 * @param {[Params, number][]} reports
 */
export function epsilonReports(reports) {
  let [up, down] = [0, 0];
  for (const [{ p, q }, n] of reports) {
    up += n * logRatio(p, q);
    down += n * logRatio(ONE - q, ONE - p);
  }
  const [[params]] = reports;
  return worstOf(params, up, down);
}

/**
 * Return the loss of any number of reports of one value.
 * @param {Params} params
 */
export function epsilonInf(params) {
  return worstOf(params, -Infinity, -Infinity); // the permanent response itself
}

/**
 * Return the loss by the answers that tell most of a permanent 1, and of a permanent 0.
 * @param {Params} params
 * @param {number} up
 * @param {number} down
 */
function worstOf(params, up, down) {
  const { f, f0 = f } = params;
  return worstDifference(params, bitLoss(f / ONE, f0 / ONE, up), bitLoss(f0 / ONE, f / ONE, down));
}

/**
 * Return the most reports that a device sends in one epoch; infinity if nothing bounds them.
 * @param {Pick<Metric, "epoch" | "interval">} metric
 */
export function mostReports({ epoch, interval }) {
  const days = MOST_DAYS[epoch];
  if (!days || interval === "none") return Infinity;
  if (interval === "week") return 1 + Math.ceil((days - 1) / 7); // Monday to Sunday
  return interval === "hour" ? 24 * days : days;
}

/**
 * Return what one scope can cost at most, in nats, rounded up to a thousandth.
 * @param {Pick<Metric, "epoch" | "interval" | "params" | "patterns">} metric
 */
export function scopePrice(metric) {
  const most = mostReports(metric);
  const loss =
    most < Infinity ? epsilonReports([[metric.params, most]]) : epsilonInf(metric.params);
  return metric.patterns * (Math.ceil(1000 * loss) / 1000);
}

/**
 * Return what a metric reserves of a calendar year: the prices of all its epochs that touch it.
 * @param {Metric} metric
 * @param {number} year
 */
export function yearPrice(metric, year) {
  const days = Array.from({ length: 12 }, (_, month) => dayOf(Date.UTC(year, month) / 1000));
  const touched = days.filter((day) => day <= metric.expires);
  const scopes = new Set(touched.map((day) => epochAt(metric.epoch, day))).size;
  return scopes && scopes * scopePrice(metric);
}

/**
 * Return ln(low / high) of the probabilities of an answer.
 * @param {number} low
 * @param {number} high
 */
function logRatio(low, high) {
  return low > high / 2 ? Math.log1p((low - high) / high) : Math.log(low / high);
}

/**
 * Return ln of the likelihood ratio of one bit's two truths after the most telling answers, which
 * speak for one state of the permanent bit. A bit of the other truth is forced `into` that state
 * with this probability, one of this truth `outOf` it; `logR` is the log-likelihood of the answers
 * in the other state, less that in this one.
 * @param {number} into
 * @param {number} outOf
 * @param {number} logR
 */
function bitLoss(into, outOf, logR) {
  if (into === 0) return -logR + Math.log1p(outOf * Math.expm1(logR));
  const kept = 1 - into - outOf;
  return Math.log1p((kept * -Math.expm1(logR)) / (into + (1 - into) * Math.exp(logR)));
}
