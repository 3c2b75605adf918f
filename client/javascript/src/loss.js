// Privacy loss of one device, in nats, and the cost that a metric reserves of the budget.
//
// The loss of reports is the largest |ln(P(reports | v) / P(reports | w))| over all pairs of values v and w, and over
// all reports that may happen. Each bit of a report depends on one true bit, so the loss is a sum over the bits in
// which v and w differ. Take one bit whose n reports are all 1. They are evidence for a 1 in the permanent response:
//
//     P(reports | permanent 1) / P(reports | permanent 0) = (q / p)^n
//
// They are weaker evidence for a true 1, because the permanent response forces some bits without regard to the true
// bit. `computeBitLoss` has the formula. [EPK14] Theorem 2 is the case n = 1, and Theorem 1 is the limit of many
// reports.
//
// The parameters f, f0, p and q are thresholds. A threshold t stands for the probability t / 2^32 of an event:
//
//     f      a true 0 becomes a permanent 1
//     f0     a true 1 becomes a permanent 0
//     p      a permanent 0 is sent as 1
//     q      a permanent 1 is sent as 1
//
// Example: f = f0 = 2^32 / 4, p = 2^32 / 4, q = 3 * 2^32 / 4, and many reports. The reports show the permanent bit. A
// true 1 is a permanent 1 with probability 3/4, and a true 0 with probability 1/4, so the loss of the bit is ln 3 =
// 1.1.
//
// [EPK14] Erlingsson, Pihur, Korolova. RAPPOR. CCS 2014, arXiv 1407.6981.

import { computeLargestLoss } from "./encodings.js";
import { ONE } from "./params.js";
import { dayOf, nameEpoch } from "./periods.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Params} Params */

/**
 * Days of the longest month, quarter and year. The cost of a metric must cover its longest epoch.
 * @type {Record<string, number>}
 */
const LONGEST_EPOCH_DAYS = { year: 366, quarter: 92, month: 31 };

/**
 * Return the loss of n reports that repeat one permanent response, in nats: epsilon_n.
 * @param {[Params, number][]} reports pairs of a parameter set and a number of reports under it. The parameter sets may
 *   differ in p and q, and agree in all parameters of the permanent response (they have one permanent fingerprint,
 *   params.js). An infinite number gives epsilon_inf
 */
export function epsilonReports(reports) {
  const [[params]] = reports;
  // Only generalized randomized response has the parameter `keep`. Its reports name one bucket, so no sum over bits is
  // needed.
  if (params.keep !== undefined) return computeBucketLoss(params);
  // For one bit: ln(P(reports | permanent 0) / P(reports | permanent 1)) if all reports are 1 (`up`), and
  // ln(P(reports | permanent 1) / P(reports | permanent 0)) if all reports are 0 (`down`). Both are negative or 0.
  let [up, down] = [0, 0];
  for (const [{ p, q }, n] of reports) {
    up += n * computeLogRatio(p, q);
    down += n * computeLogRatio(ONE - q, ONE - p);
  }
  const { f, f0 } = params;
  // All reports 1: they are evidence for a permanent 1. f forces a true 0 into this state, and f0 forces a true 1 out
  // of it. All reports 0: they are evidence for a permanent 0, and f and f0 change places.
  return computeLargestLoss(params, computeBitLoss(f, f0, up), computeBitLoss(f0, f, down));
}

/**
 * Return the loss of generalized randomized response, in nats. All reports of a value are equal, so their number does
 * not matter.
 *
 * A value v has n own buckets: the bucket of its category, or the buckets of the items of its set (params.js). A report
 * names a random own bucket with probability keep / 2^32, and otherwise a random one of all k buckets. The loss is
 * largest for a report of a bucket that is an own bucket of v, and not of w:
 *
 *     P(bucket | w)  =  (1 - keep / 2^32) * P(the bucket is drawn from k buckets)
 *     P(bucket | v)  =  P(bucket | w) + keep / 2^32 * P(the bucket is drawn from n own buckets)
 *
 * A coin, a uniform integer of 32 bits, draws the bucket. It has 2^32 outcomes, and k may not divide 2^32. So a bucket
 * has floor(2^32 / k) outcomes or one more. The bound takes the smaller number for w, and the larger number
 * ceil(2^32 / n) for the own buckets of v.
 * @param {Params} params
 */
function computeBucketLoss({ k, items = 1, keep = 0 }) {
  return Math.log1p((keep * Math.ceil(ONE / items)) / ((ONE - keep) * Math.floor(ONE / k)));
}

/**
 * Return the largest number of reports that a device sends for a metric in one epoch, infinity for life.
 * @param {Pick<Metric, "epoch" | "interval">} metric
 */
export function computeMostReports({ epoch, interval }) {
  const days = LONGEST_EPOCH_DAYS[epoch] ?? Infinity;
  // The first day of an epoch is in one week. The days that follow touch another week for every seven days, also if the
  // last seven are not complete. Example: a month of 31 days touches 1 + ceil(30 / 7) = 6 weeks at most.
  const weeks = 1 + Math.ceil((days - 1) / 7);
  return { epoch: 1, week: weeks, day: days }[interval];
}

/**
 * Return the cost of one scope in nats: the loss of all reports that epoch and interval allow, rounded up to a multiple
 * of 0.001. (A scope is one metric in one epoch under one permanent fingerprint, see scopes.js.)
 * @param {Pick<Metric, "epoch" | "interval" | "params">} metric
 */
function computeScopeCost(metric) {
  return Math.ceil(1000 * epsilonReports([[metric.params, computeMostReports(metric)]])) / 1000;
}

/**
 * Return the nats that a metric reserves for a calendar year: the cost of a scope for each epoch that has a day in the
 * year, without the epochs that begin after the last day of the metric.
 * @param {Metric} metric
 * @param {number} year
 */
export function computeYearCost(metric, year) {
  // An epoch with a day in the year contains the first day of a month of the year.
  const firstDays = Array.from({ length: 12 }, (_, month) => dayOf(Date.UTC(year, month) / 1000));
  const touched = firstDays.filter((day) => day <= metric.expires);
  const scopes = new Set(touched.map((day) => nameEpoch(metric.epoch, day))).size;
  return scopes && scopes * computeScopeCost(metric); // 0 scopes of an infinite cost are 0, and not NaN
}

/**
 * Return ln(low / high) of two probabilities or thresholds, low <= high. The result is negative or 0.
 * @param {number} low
 * @param {number} high
 */
function computeLogRatio(low, high) {
  // If low and high are close, log1p keeps the digits of the small result. If low is far smaller than high, low - high
  // would lose the digits of low, so the logarithm of the quotient is exact enough.
  return low > high / 2 ? Math.log1p((low - high) / high) : Math.log(low / high);
}

/**
 * Return the loss of one bit whose reports all are the same, in nats: ln(P(reports | v) / P(reports | w)).
 *
 * The reports are evidence for one state of the permanent bit, the target state. The true bit of v equals the target
 * state, and the true bit of w is the opposite. With x = into / 2^32, y = outOf / 2^32 and r = exp(logR),
 *
 *     P(reports | v) / P(reports | target)  =  1 - y + y r      v is forced out of the target state with probability y
 *     P(reports | w) / P(reports | target)  =  x + (1 - x) r    w is forced into the target state with probability x
 *
 * The quotient of both is written as 1 + (1 - x - y) (1 - r) / (x + (1 - x) r). In this form no digits are lost if the
 * loss is small.
 * @param {number} into threshold of x: the permanent response forces the opposite true bit into the target state
 * @param {number} outOf threshold of y: the permanent response forces an equal true bit out of the target state
 * @param {number} logR ln(P(reports | permanent bit in the other state) / P(reports | permanent bit in the target
 *   state))
 */
function computeBitLoss(into, outOf, logR) {
  const [x, y] = [into / ONE, outOf / ONE];
  // x = 0: the opposite true bit is never forced into the target state, and the quotient is (1 - y + y r) / r. The last
  // line would give infinity as soon as exp(logR) is too small for a floating-point number. The loss is infinite only
  // if logR is -Infinity: infinitely many reports prove the true bit.
  if (x === 0) return -logR + Math.log1p(y * Math.expm1(logR));
  return Math.log1p(((1 - x - y) * -Math.expm1(logR)) / (x + (1 - x) * Math.exp(logR)));
}
