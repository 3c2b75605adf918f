// Privacy loss of one device, in nats, and the cost that a metric reserves of the budget.
//
// The loss of reports is the largest |ln(P(reports | v) / P(reports | w))| over all pairs of values v and w. Each
// bit of a report depends on one true bit, so the loss is a sum over the bits in which v and w differ. For one
// bit whose n reports are all 1,
//
//     P(reports | permanent 1) / P(reports | permanent 0) = (q / p)^n
//
// and the permanent response weakens this evidence, because it has forced some bits. `computeBitLoss` has the
// formula. [EPK14] Theorem 2 is the case n = 1, Theorem 1 the limit of many reports.
//
// [EPK14] Erlingsson, Pihur, Korolova. RAPPOR. CCS 2014, arXiv 1407.6981.

import { computeLargestLoss } from "./encodings.js";
import { ONE } from "./params.js";
import { dayOf, nameEpoch } from "./periods.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Params} Params */

/** @type {Record<string, number>} days of the longest epoch of each length: a cost must cover every epoch */
const LONGEST_EPOCH_DAYS = { year: 366, quarter: 92, month: 31 };

/**
 * Return the loss of reports of one value that repeat one permanent response, in nats: epsilon_n of n reports.
 * @param {[Params, number][]} reports numbers of reports by parameter set; the sets differ in p and q only. An
 *   infinite number gives epsilon_inf
 */
export function epsilonReports(reports) {
  const [[params]] = reports;
  if (params.keep !== undefined) return computeBucketLoss(params);
  // The log-likelihood ratio of reports that are all 1 (`up`) and all 0 (`down`), permanent 0 against 1.
  let [up, down] = [0, 0];
  for (const [{ p, q }, n] of reports) {
    up += n * computeLogRatio(p, q);
    down += n * computeLogRatio(ONE - q, ONE - p);
  }
  const { f, f0 } = params;
  // Ones are evidence for a permanent 1: f forces a true 0 into it, f0 forces a true 1 out of it. For zeros the
  // thresholds change places.
  return computeLargestLoss(params, computeBitLoss(f, f0, up), computeBitLoss(f0, f, down));
}

/**
 * Return the loss of generalized randomized response, in nats. All reports of a value are equal, so their number
 * does not matter. An own bucket has at most ceil(2^32 / n) of the coins that choose one of n, and every bucket at
 * least floor(2^32 / k) of the coins that choose one of k.
 * @param {Params} params
 */
function computeBucketLoss({ k, items = 1, keep = 0 }) {
  return Math.log1p((keep * Math.ceil(ONE / items)) / ((ONE - keep) * Math.floor(ONE / k)));
}

/**
 * Return the largest number of reports of a device in one epoch, infinity for life.
 * @param {Pick<Metric, "epoch" | "interval">} metric
 */
export function computeMostReports({ epoch, interval }) {
  const days = LONGEST_EPOCH_DAYS[epoch] ?? Infinity;
  // An epoch touches one week on its first day, and another week for every seven days that follow, or part of
  // seven.
  const weeks = 1 + Math.ceil((days - 1) / 7);
  return { epoch: 1, week: weeks, day: days }[interval];
}

/**
 * Return the cost of one scope in nats: the loss of all reports that epoch and interval allow, rounded up to a
 * thousandth. (A scope is one metric in one epoch under one permanent response.)
 * @param {Pick<Metric, "epoch" | "interval" | "params">} metric
 */
function computeScopeCost(metric) {
  return Math.ceil(1000 * epsilonReports([[metric.params, computeMostReports(metric)]])) / 1000;
}

/**
 * Return the nats that a metric reserves for a calendar year: the costs of all epochs that touch the year
 * before the metric expires.
 * @param {Metric} metric
 * @param {number} year
 */
export function computeYearCost(metric, year) {
  const firstDays = Array.from({ length: 12 }, (_, month) => dayOf(Date.UTC(year, month) / 1000));
  const touched = firstDays.filter((day) => day <= metric.expires);
  const scopes = new Set(touched.map((day) => nameEpoch(metric.epoch, day))).size;
  return scopes && scopes * computeScopeCost(metric); // 0 scopes of an infinite cost are 0, and not NaN
}

/**
 * Return ln(low / high) of two probabilities or thresholds, low <= high.
 * @param {number} low
 * @param {number} high
 */
function computeLogRatio(low, high) {
  // log1p keeps the digits of close probabilities. For distant ones low - high loses the digits of low.
  return low > high / 2 ? Math.log1p((low - high) / high) : Math.log(low / high);
}

/**
 * Return the largest log-likelihood ratio of the two true values of one bit, in nats.
 *
 * The reports are the strongest evidence for one state of the permanent bit, the target state. With the
 * probabilities x = into / 2^32 and y = outOf / 2^32, and with r = exp(logR), the likelihood ratio is
 *
 *     (1 - y + y r) / (x + (1 - x) r)
 *
 * The code writes it as 1 + (1 - x - y) (1 - r) / (x + (1 - x) r), in which nothing cancels for small losses.
 * @param {number} into threshold with which the permanent response forces the opposite true bit into the target
 *   state
 * @param {number} outOf threshold with which it forces an equal true bit out of the target state
 * @param {number} logR log-likelihood of the reports in the other state, less that in the target state
 */
function computeBitLoss(into, outOf, logR) {
  const [x, y] = [into / ONE, outOf / ONE];
  // x = 0: the opposite true bit never reaches the target state. With logR = -Infinity, as of a metric for life,
  // the reports prove the true bit, and the loss is infinite.
  if (x === 0) return -logR + Math.log1p(y * Math.expm1(logR));
  return Math.log1p(((1 - x - y) * -Math.expm1(logR)) / (x + (1 - x) * Math.exp(logR)));
}
