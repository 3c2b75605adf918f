// Preparation of recorded values: everything that needs the secret, which takes time.

import { base64url } from "./bytes.js";
import { DAY, afterDay, epochAt } from "./calendar.js";
import { encode } from "./encodings.js";
import { ONE } from "./params.js";
import { chooseDay, choosePart, cohortOf, permanentOf, scopeCoin, scopeName } from "./responses.js";
import { hasReported, memoizedPart, rulesOn } from "./scopes.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../documents.js").Device} Device */

/**
 * The decisions of the secret for a metric in an epoch: the parameters of the device's part, their scope
 * and cohort, and the coins of sampling and day.
 * @typedef {object} Decisions
 * @property {Params} params
 * @property {string} scope
 * @property {number} cohort
 * @property {number} sample
 * @property {number} day
 */

/** @typedef {import("./scopes.js").PreparedValue & { scope: string, bits: Uint8Array }} Prepared with the true bits, which are never stored */

/** Prepares values under one secret. */
export class Preparation {
  #secret;
  /** @type {Map<string, Decisions>} */ #decisions = new Map();

  /** @param {CryptoKey} secret */
  constructor(secret) {
    this.#secret = secret;
  }

  /**
   * Return why a metric is skipped on a day, whatever its value; undefined if it is not skipped, or if
   * the decisions of the secret are not known yet.
   * @param {Device} device
   * @param {Metric} metric
   * @param {string} day
   * @returns {"sample" | "day" | "last day" | undefined}
   */
  skipReason(device, metric, day) {
    const decisions = this.#decisions.get(keyOf(metric, day));
    if (!decisions || hasReported(device, metric.name, day)) return undefined;
    if (decisions.sample >= metric.sampling_rate) return "sample";
    if (metric.interval !== "epoch") return undefined;
    const { first, end } = rulesOn(metric, day);
    const dayNumber = (/** @type {string} */ date) => (afterDay(date) - afterDay(first)) / DAY; // from 0
    const drawnDay = chooseDay(decisions.day, dayNumber(end) + 1);
    if (dayNumber(day) < drawnDay) return "day";
    return day === end ? "last day" : undefined; // its report would leave in the next epoch
  }

  /**
   * Compute the decisions of the secret for a metric on a day, and remember them.
   * @param {Device} device
   * @param {Metric} metric
   * @param {string} day
   * @returns {Promise<Decisions>}
   */
  async decide(device, metric, day) {
    const known = this.#decisions.get(keyOf(metric, day));
    if (known) return known;
    const epoch = epochAt(metric.epoch, day);
    const coin = (/** @type {string} */ use, /** @type {string} */ scope) =>
      scopeCoin(this.#secret, use, scope);
    const base = scopeName(metric.name, epoch, metric.params);
    const memoized = memoizedPart(device, metric, epoch);
    const part = metric.parts.length && (memoized ?? choosePart(metric.parts, await coin("part", base)));
    const { params } = part || metric;
    const scope = scopeName(metric.name, epoch, params);
    const cohort = await cohortOf(this.#secret, scope, params);
    const sample = metric.sampling_rate < ONE ? await coin("sample", base) : 0;
    const dayCoin = metric.interval === "epoch" ? await coin("day", scope) : 0;
    const decisions = { params, scope, cohort, sample, day: dayCoin };
    this.#decisions.set(keyOf(metric, day), decisions);
    return decisions;
  }

  /**
   * Encode the value of an event. The permanent response is left out: it takes long, and only the first
   * report of a scope needs it.
   * @param {Device} device
   * @param {Metric} metric
   * @param {string | number[]} input
   * @param {string} day
   * @returns {Promise<Prepared>}
   */
  async prepare(device, metric, input, day) {
    const { params, scope, cohort } = await this.decide(device, metric, day);
    const epoch = epochAt(metric.epoch, day);
    const bits = await encode(params, input, cohort);
    return { metric: metric.name, params, epoch, cohort, scope, bits };
  }

  /**
   * Add the permanent response to a prepared value.
   * @param {Prepared} value
   */
  async addPermanent(value) {
    const { scope, params, bits } = value;
    value.permanent = base64url(await permanentOf(this.#secret, scope, params, bits));
  }
}

/**
 * @param {Metric} metric
 * @param {string} day
 */
function keyOf({ name, epoch }, day) {
  return `${name} ${epochAt(epoch, day)}`;
}
