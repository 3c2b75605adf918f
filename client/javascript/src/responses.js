// The permanent and the instantaneous response, and the decisions of the secret. A coin is a uniform 32-bit
// integer u; it hits a threshold t if u < t. No floating-point probability takes part.

import { concat, integers, utf8 } from "./bytes.js";
import { ONE } from "./params.js";
import { expand } from "./secret.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("../index.js").Params} Params */

const EXCLUDED_DAYS = 8; // at the end of an epoch

/** @type {Coins} the system's generator */
export const systemCoins = (n) => crypto.getRandomValues(new Uint32Array(n));

/**
 * Return the name of a scope, from which its coins are derived.
 * @param {string} metric
 * @param {string} epoch
 * @param {Params} params
 */
export function scopeName(metric, epoch, params) {
  return `${metric}\0${epoch}\0${params.permanentFingerprint}`;
}

/**
 * Return the coin of the secret for a scope and a use: cohort, day, part or sample.
 * @param {CryptoKey} secret
 * @param {string} use
 * @param {string} scope
 */
export async function scopeCoin(secret, use, scope) {
  return integers(await expand(secret, `rappor/1/${use}\0${scope}`, 4))[0];
}

/**
 * Return the device's cohort in a scope. It differs between metrics and epochs, or it would link reports.
 * @param {CryptoKey} secret
 * @param {string} scope
 * @param {Params} params
 */
export async function cohortOf(secret, scope, params) {
  return Math.floor(((await scopeCoin(secret, "cohort", scope)) * params.m) / ONE);
}

/**
 * Return the permanent response to packed true bits. Equal inputs give equal responses.
 * @param {CryptoKey} secret
 * @param {string} scope
 * @param {Params} params
 * @param {Uint8Array} bits
 */
export async function permanentOf(secret, scope, params, bits) {
  const info = concat(utf8(`rappor/1/permanent\0${scope}\0`), bits);
  const coins = integers(await expand(secret, info, 4 * params.k));
  return permanentResponse(bits, params, (n) => coins.slice(0, n));
}

/**
 * Return the permanent response: each bit is forced to 1 with threshold f, to 0 with threshold f0, else kept.
 * @param {Uint8Array} bits
 * @param {Params} params
 * @param {Coins} coins
 */
export function permanentResponse(bits, { f, f0, k }, coins) {
  return mapBits(bits, k, coins, (bit, u) => (u < f ? 1 : u < f + f0 ? 0 : bit));
}

/**
 * Return the instantaneous response: each bit is 1 with threshold q if it was 1, and p if it was 0.
 * @param {Uint8Array} permanent
 * @param {Params} params
 * @param {Coins} coins
 */
export function instantaneousResponse(permanent, { k, p, q }, coins) {
  return mapBits(permanent, k, coins, (bit, u) => (u < (bit ? q : p) ? 1 : 0));
}

/**
 * @param {Uint8Array} bits
 * @param {number} k
 * @param {Coins} coins
 * @param {(bit: number, u: number) => number} respond
 */
function mapBits(bits, k, coins, respond) {
  const result = new Uint8Array(bits.length);
  const drawn = coins(k); // one coin for each bit, in order
  for (let i = 0; i < k; i++) {
    const bit = (bits[i >> 3] >> (i & 7)) & 1;
    result[i >> 3] |= respond(bit, drawn[i]) << (i & 7);
  }
  return result;
}

/**
 * Return the day that a coin chooses among the days of an epoch, counted from 0. The last eight days are
 * never chosen: one day passes until the report leaves, and seven are for retries. A report of the last day
 * would leave in the next epoch, take the turn of that epoch's report there, and so on for good.
 * @param {number} u
 * @param {number} days
 */
export function chooseDay(u, days) {
  return Math.floor((u * (days - EXCLUDED_DAYS)) / ONE); // exact: less than 2^41
}

/**
 * Return the part whose range contains a coin. The last part has no threshold and owns the remaining range.
 * @template {{ name: string, threshold?: number }} Part
 * @param {readonly Part[]} parts
 * @param {number} u
 */
export function choosePart(parts, u) {
  let end = 0;
  return parts.find(({ threshold }) => threshold === undefined || u < (end += threshold));
}
