// From a recorded value to what may enter a scope: all that needs the secret, which takes time.

import { base64url, concat, utf8 } from "./bytes.js";
import { DAY, afterDay, epochAt } from "./calendar.js";
import { encode } from "./encodings.js";
import { ONE } from "./params.js";
import { choosePart, cohortOf, permanentOf, scopeCoin, scopeName } from "./responses.js";
import { isBegun, latchedPart, termsOf } from "./scopes.js";
import { expand } from "./secret.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("./scopes.js").Entering} Entering */

/**
 * What the secret says of a metric in an epoch: the parameters of its part, their scope and cohort,
 * and its coins for sample and day.
 * @typedef {object} Place
 * @property {Params} params
 * @property {string} scope
 * @property {number} cohort
 * @property {number} sample
 * @property {number} day
 */

/** @typedef {Entering & { scope: string, bits: Uint8Array }} Made with the true bits, which are never stored */

const PATTERN_BYTES = 16; // two patterns share a name with probability 2^-128

/** Makes what one secret answers. */
export class Maker {
  #secret;
  /** @type {Map<string, Place>} */ #places = new Map();

  /** @param {CryptoKey} secret */
  constructor(secret) {
    this.#secret = secret;
  }

  /**
   * Return why a metric is silent on a day, whatever is recorded; undefined also where its place
   * is not known yet.
   * @param {Device} device
   * @param {Metric} metric
   * @param {string} day
   * @returns {"sample" | "day" | undefined}
   */
  silence(device, metric, day) {
    const place = this.#places.get(nameOf(metric, day));
    if (!place || isBegun(device, metric.name, day)) return undefined;
    if (place.sample >= metric.sample) return "sample";
    const { first, end } = termsOf(metric, day);
    const until = (/** @type {string} */ last) => afterDay(last) - afterDay(first) + DAY;
    const isEarly = until(day) * ONE <= until(end) * place.day;
    return metric.interval === "epoch" && isEarly ? "day" : undefined;
  }

  /**
   * Learn what the secret says of a metric on a day.
   * @param {Device} device
   * @param {Metric} metric
   * @param {string} day
   * @returns {Promise<Place>}
   */
  async place(device, metric, day) {
    const known = this.#places.get(nameOf(metric, day));
    if (known) return known;
    const epoch = epochAt(metric.epoch, day);
    const coin = (/** @type {string} */ use, /** @type {string} */ scope) =>
      scopeCoin(this.#secret, use, scope);
    const base = scopeName(metric.name, epoch, metric.params);
    const latched = latchedPart(device, metric, epoch);
    const part = metric.parts.length && (latched ?? choosePart(metric.parts, await coin("part", base)));
    const { params } = part || metric;
    const scope = scopeName(metric.name, epoch, params);
    const cohort = await cohortOf(this.#secret, scope, params);
    const sample = metric.sample < ONE ? await coin("sample", base) : 0;
    const drawn = metric.interval === "epoch" ? await coin("day", scope) : 0;
    const place = { params, scope, cohort, sample, day: drawn };
    this.#places.set(nameOf(metric, day), place);
    return place;
  }

  /**
   * Return what a recorded value is for one metric, without the permanent response, which takes long
   * and of which a scope needs few.
   * @param {Device} device
   * @param {Metric} metric
   * @param {string | number[]} told
   * @param {string} day
   * @returns {Promise<Made>}
   */
  async entering(device, metric, told, day) {
    const { params, scope, cohort } = await this.place(device, metric, day);
    const epoch = epochAt(metric.epoch, day);
    const bits = await encode(params, told, cohort);
    const named = concat(utf8(`rappor-client/1/pattern\0${scope}\0`), bits);
    const pattern = base64url(await expand(this.#secret, named, PATTERN_BYTES));
    return { metric: metric.name, params, epoch, cohort, pattern, scope, bits };
  }

  /**
   * Give answers their permanent responses.
   * @param {Made[]} answers
   */
  async complete(answers) {
    for (const each of answers) {
      const { scope, params, bits } = each;
      each.permanent = base64url(await permanentOf(this.#secret, scope, params, bits));
    }
  }
}

/**
 * @param {Metric} metric
 * @param {string} day
 */
function nameOf({ name, epoch }, day) {
  return `${name} ${epochAt(epoch, day)}`;
}
