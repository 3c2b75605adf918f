// Privacy loss of one device in nats: of its reports of one value, and the cost that a metric reserves.

import { dayOf, epochAt } from "./calendar.js";
import { worstDifference } from "./encodings.js";
import { ONE } from "./params.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Params} Params */

/** @type {Record<string, number>} days of the longest epoch of a kind */
const MOST_DAYS = { year: 366, quarter: 92, month: 31 };

/**
 * Return the loss of n reports of one value under one permanent response: epsilon_n. The reports are
 * counted by parameter sets that differ in p and q only. n = 1 gives [EPK14] Theorem 2, and an infinite n
 * gives Theorem 1.
 * @param {[Params, number][]} reports
 */
export function epsilonReports(reports) {
  let [up, down] = [0, 0];
  for (const [{ p, q }, n] of reports) {
    up += n * logRatio(p, q);
    down += n * logRatio(ONE - q, ONE - p);
  }
  const [[params]] = reports;
  const { f, f0 } = params;
  return worstDifference(params, bitLoss(f, f0, up), bitLoss(f0, f, down));
}

/**
 * Return the largest number of reports of a device in one epoch; infinity for life.
 * @param {Pick<Metric, "epoch" | "interval">} metric
 */
export function mostReports({ epoch, interval }) {
  const days = MOST_DAYS[epoch] ?? Infinity;
  const weeks = 1 + Math.ceil((days - 1) / 7); // an epoch may begin on any day of a week
  return { epoch: 1, week: weeks, day: days }[interval];
}

/**
 * Return the cost of one scope: an upper bound on its loss in nats, rounded up to a thousandth.
 * @param {Pick<Metric, "epoch" | "interval" | "params">} metric
 */
function scopeCost(metric) {
  return Math.ceil(1000 * epsilonReports([[metric.params, mostReports(metric)]])) / 1000;
}

/**
 * Return the nats that a metric reserves for a calendar year: the costs of all epochs that touch it.
 * @param {Metric} metric
 * @param {number} year
 */
export function yearCost(metric, year) {
  const days = Array.from({ length: 12 }, (_, month) => dayOf(Date.UTC(year, month) / 1000));
  const touched = days.filter((day) => day <= metric.expires);
  const scopes = new Set(touched.map((day) => epochAt(metric.epoch, day))).size;
  return scopes && scopes * scopeCost(metric);
}

/**
 * Return ln(low / high) of two probabilities. Where they are close, log1p keeps the digits.
 * @param {number} low
 * @param {number} high
 */
function logRatio(low, high) {
  return low > high / 2 ? Math.log1p((low - high) / high) : Math.log(low / high);
}

/**
 * Return the log-likelihood ratio of the two true bits, for the reports that are the strongest evidence
 * for one of them.
 *
 * These reports are most likely under one state of the permanent bit. `into` is the threshold with which
 * the permanent response forces the other true bit into that state, and `outOf` the threshold with which
 * it forces this true bit out of it. `logR` is the log-likelihood of the reports in the other state minus
 * the log-likelihood in this state.
 * @param {number} into
 * @param {number} outOf
 * @param {number} logR
 */
function bitLoss(into, outOf, logR) {
  const [x, y] = [into / ONE, outOf / ONE];
  // x = 0 and logR = -Infinity: the other true bit can never give these reports, an infinite loss.
  if (x === 0) return -logR + Math.log1p(y * Math.expm1(logR));
  return Math.log1p(((1 - x - y) * -Math.expm1(logR)) / (x + (1 - x) * Math.exp(logR)));
}
