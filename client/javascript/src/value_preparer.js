// Preparation of recorded values: every computation that needs the secret.
//
// WebCrypto is asynchronous, and record() and a transaction of the store cannot wait for it. Values are therefore
// prepared after record() and before their transaction:
//
// 1. `decide`, before the first value of a metric in an epoch: the decisions of the secret for the whole epoch.
//
//        part         which part of a string the device reports
//        cohort       the hash functions of the device
//        sampling     whether the device takes part in this epoch
//        report day   with `interval = "epoch"`, the first day of the epoch whose events take part
//
// 2. `findSkipReason`: whether these decisions skip the metric. No reason depends on the value.
// 3. `prepare`, for each value: its true bits in the cohort.
// 4. `addPermanent`, only if the transaction finds that a scope begins with the value: the permanent response. All
//    later reports of the scope repeat the stored permanent response.

import { toBase64url } from "./bytes.js";
import { encode } from "./encodings.js";
import { ONE } from "./params.js";
import { DAY, findDayEnd, nameEpoch } from "./periods.js";
import { chooseDay, choosePart, deriveCohort, deriveCoin, derivePermanentResponse, encodeScope } from "./randomizer.js";
import { hasReported, findMemoizedPart, findRules } from "./scopes.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Input} Input */

/**
 * Decisions of the secret for a metric in an epoch.
 * @typedef {object} Decisions
 * @property {Params} params parameter set of the part that the device reports, or of a metric without parts
 * @property {string} scope text that names the scope in the input of derived coins (`encodeScope` in randomizer.js)
 * @property {number} cohort
 * @property {number} sampling a coin. The device takes part if it is below the threshold `sampling_rate` of the metric
 * @property {number} dayCoin a coin that chooses the report day if `interval = "epoch"`, else 0
 */

/** @typedef {import("./scopes.js").PreparedValue & { scope: string, bits: Uint8Array }} Prepared with the true bits, which are never stored */

/** Prepares values under one secret, and caches the decisions of the secret. */
export class ValuePreparer {
  #secret;
  /** @type {Map<string, Decisions>} cache, by metric and epoch */ #decisions = new Map();

  /** @param {CryptoKey} secret */
  constructor(secret) {
    this.#secret = secret;
  }

  /**
   * Return the reason why the decisions of the secret skip a metric on a day:
   *
   *     "sample"     the device does not take part in this epoch
   *     "day"        `interval = "epoch"`: the report day has not come. Earlier events do not take part, so that the
   *                  reports of all devices are spread over the days of the epoch
   *     "last day"   `interval = "epoch"`: the report would leave on the next day, in the next epoch
   *
   * Return undefined if the metric is not skipped, or if `decide` has not been called for this epoch.
   * @param {Device} device
   * @param {Metric} metric
   * @param {string} day
   * @returns {"sample" | "day" | "last day" | undefined}
   */
  findSkipReason(device, metric, day) {
    const decisions = this.#decisions.get(createKey(metric, day));
    // A device that has reported in this epoch continues, also if a new registry has a lower sampling rate.
    if (!decisions || hasReported(device, metric.name, day)) return undefined;
    if (decisions.sampling >= metric.sampling_rate) return "sample";
    if (metric.interval !== "epoch") return undefined;
    const { first, end } = findRules(metric, day);
    const dayNumber = (/** @type {string} */ date) => (findDayEnd(date) - findDayEnd(first)) / DAY; // from 0
    const reportDay = chooseDay(decisions.dayCoin, dayNumber(end) + 1);
    if (dayNumber(day) < reportDay) return "day";
    return day === end ? "last day" : undefined;
  }

  /**
   * Derive the decisions of the secret for a metric on a day, and cache them.
   * @param {Device} device
   * @param {Metric} metric
   * @param {string} day
   * @returns {Promise<Decisions>}
   */
  async decide(device, metric, day) {
    const cached = this.#decisions.get(createKey(metric, day));
    if (cached) return cached;
    const epoch = nameEpoch(metric.epoch, day);
    // The coins of part and sampling are derived before the part is known, so `baseScope` names the parameter set of the
    // metric. The other coins are derived afterwards, and `scope` names the parameter set of the part.
    const baseScope = encodeScope(metric.name, epoch, metric.params);
    const memoized = findMemoizedPart(device, metric, epoch);
    const part =
      metric.parts.length &&
      (memoized ?? choosePart(metric.parts, await deriveCoin(this.#secret, "part", baseScope)));
    const { params } = part || metric;
    const scope = encodeScope(metric.name, epoch, params);
    const cohort = await deriveCohort(this.#secret, scope, params);
    const isSampled = metric.sampling_rate < ONE;
    const sampling = isSampled ? await deriveCoin(this.#secret, "sample", baseScope) : 0;
    const dayCoin = metric.interval === "epoch" ? await deriveCoin(this.#secret, "day", scope) : 0;
    const decisions = { params, scope, cohort, sampling, dayCoin };
    this.#decisions.set(createKey(metric, day), decisions);
    return decisions;
  }

  /**
   * Encode the value of an event in the cohort of the device. The result has no permanent response yet: its computation
   * takes long, and only the first report of a scope needs it.
   * @param {Device} device
   * @param {Metric} metric
   * @param {Input} input encoder input of the value (encodings.js)
   * @param {string} day
   * @returns {Promise<Prepared>}
   */
  async prepare(device, metric, input, day) {
    const { params, scope, cohort } = await this.decide(device, metric, day);
    const epoch = nameEpoch(metric.epoch, day);
    const bits = await encode(params, input, cohort);
    return { metric: metric.name, params, epoch, cohort, scope, bits };
  }

  /**
   * Compute the permanent response of a prepared value, and add it to the value.
   * @param {Prepared} value
   */
  async addPermanent(value) {
    const { scope, params, bits } = value;
    value.permanent = toBase64url(await derivePermanentResponse(this.#secret, scope, params, bits));
  }
}

/**
 * Return the key of a metric's decisions on a day.
 * @param {Metric} metric
 * @param {string} day
 */
function createKey({ name, epoch }, day) {
  return `${name} ${nameEpoch(epoch, day)}`;
}
