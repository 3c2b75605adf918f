// The two randomized responses and what decides them: coins and one secret. A coin is a uniform
// 32-bit integer u; it hits a threshold t when u < t. No fraction takes part.

import { concat, integers, utf8 } from "./bytes.js";
import { ONE } from "./params.js";
import { expand } from "./secret.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("../index.js").Params} Params */

/** @type {Coins} */
export const systemCoins = (n) => crypto.getRandomValues(new Uint32Array(n));

/**
 * Return the name of what one permanent response answers for, as it enters the coins.
 * @param {string} metric
 * @param {string} epoch
 * @param {Params} params
 */
export function scopeName(metric, epoch, params) {
  return `${metric}\0${epoch}\0${params.permanentFingerprint}`;
}

/**
 * Return a coin of the secret for a scope: its `use` is cohort, part or sample.
 * @param {CryptoKey} secret
 * @param {string} use
 * @param {string} scope
 */
export async function scopeCoin(secret, use, scope) {
  return integers(await expand(secret, `rappor/1/${use}\0${scope}`, 4))[0];
}

/**
 * Return the device's cohort in a scope; it links neither metrics nor epochs.
 * @param {CryptoKey} secret
 * @param {string} scope
 * @param {Params} params
 */
export async function cohortOf(secret, scope, params) {
  return Math.floor(((await scopeCoin(secret, "cohort", scope)) * params.m) / ONE);
}

/**
 * Return the permanent response to packed true bits, always the same for the same input.
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
 * Replace each bit by 1 with probability f, a threshold here, and by 0 with probability f0.
 * @param {Uint8Array} bits
 * @param {Params} params
 * @param {Coins} coins
 */
export function permanentResponse(bits, { f, f0, k }, coins) {
  return response(bits, k, coins, (bit, u) => (u < f ? 1 : u < f + f0 ? 0 : bit));
}

/**
 * Show each bit as 1 with probability q where it is 1, and p where it is 0.
 * @param {Uint8Array} permanent
 * @param {Params} params
 * @param {Coins} coins
 */
export function instantaneousResponse(permanent, { k, p, q }, coins) {
  return response(permanent, k, coins, (bit, u) => (u < (bit ? q : p) ? 1 : 0));
}

/**
 * @param {Uint8Array} bits
 * @param {number} k
 * @param {Coins} coins
 * @param {(bit: number, u: number) => number} answer
 */
function response(bits, k, coins, answer) {
  const answered = new Uint8Array(bits.length);
  const drawn = coins(k);
  for (let i = 0; i < k; i++) {
    const bit = (bits[i >> 3] >> (i & 7)) & 1;
    answered[i >> 3] |= answer(bit, drawn[i]) << (i & 7);
  }
  return answered;
}

/**
 * Return the part whose range holds a coin; the last one takes the rest.
 * @template {{ name: string, threshold?: number }} Part
 * @param {readonly Part[]} parts
 * @param {number} u
 */
export function choosePart(parts, u) {
  let end = 0;
  return parts.find(({ threshold }) => threshold === undefined || u < (end += threshold));
}
