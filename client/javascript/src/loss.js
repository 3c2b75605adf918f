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
  const a = params.f / ONE;
  return worstDifference(params, bitLoss(a, up), bitLoss(a, down));
}

/**
 * Return the loss of any number of reports of one value.
 * @param {Params} params
 */
export function epsilonInf(params) {
  const bit = bitLoss(params.f / ONE, -Infinity); // the permanent response itself
  return worstDifference(params, bit, bit);
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
 * Return ln of the likelihood ratio of one bit's two truths after the most telling answers;
 * a is f/2, and `logR` the log-likelihood of the answers if the permanent bit is the other one.
 * @param {number} a
 * @param {number} logR
 */
function bitLoss(a, logR) {
  if (a === 0) return -logR;
  return Math.log1p(((1 - 2 * a) * -Math.expm1(logR)) / (a + (1 - a) * Math.exp(logR)));
}
