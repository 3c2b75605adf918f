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
 * that differ in p and q only ([EPK14] Theorem 2 for one, and 1 for infinity; others in between).
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
 * Return the most reports that a device sends in one epoch; infinity if nothing bounds them.
 * @param {Pick<Metric, "epoch" | "interval">} metric
 */
export function mostReports({ epoch, interval }) {
  const days = MOST_DAYS[epoch];
  const week = 1 + Math.ceil((days - 1) / 7); // Monday to Sunday
  /** @type {Record<string, number>} */
  const most = { epoch: 1, week, day: days, hour: 24 * days };
  return most[interval] || Infinity; // for life it is no number
}

/**
 * Return what one scope can cost at most, in nats, rounded up to a thousandth.
 * @param {Pick<Metric, "epoch" | "interval" | "params" | "patterns">} metric
 */
function scopePrice(metric) {
  const loss = epsilonReports([[metric.params, mostReports(metric)]]);
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
 * speak for one state of the permanent bit. Of ONE coins, `into` force a bit of the other truth
 * into that state, and `outOf` one of this truth out of it; `logR` is the log-likelihood of the
 * answers in the other state, less that in this one.
 * @param {number} into
 * @param {number} outOf
 * @param {number} logR
 */
function bitLoss(into, outOf, logR) {
  const [x, y] = [into / ONE, outOf / ONE];
  if (x === 0) return -logR + Math.log1p(y * Math.expm1(logR));
  return Math.log1p(((1 - x - y) * -Math.expm1(logR)) / (x + (1 - x) * Math.exp(logR)));
}
