// The randomizer of a device: coins, the permanent response and the instantaneous response.
//
// A coin is a uniform integer u of 32 bits. A random decision compares a coin with a threshold t, and the event
// happens if u < t, with probability t / 2^32. The noise contains no floating-point number, because the low bits of
// floating-point noise can reveal the true value (Mironov, CCS 2012).
//
// There are two kinds of coins:
//
// 1. Derived coins come from the device's secret, with a text that names their use. Equal texts give equal coins.
//    These decisions use derived coins, so that the device repeats them without storing anything for each value:
//
//        cohort                the hash functions of the device's reports
//        part                  which part of a string the device reports, such as its first three letters
//        sample                whether the device takes part in the metric in this epoch
//        day                   the first day that counts, of a metric with `interval = "epoch"`
//        permanent response    the noise that all reports of a scope repeat
//
// 2. System coins come from the generator of the browser. Every instantaneous response draws new ones.
//
// The text of derived coins contains the scope: metric, epoch and permanent fingerprint. So cohorts and permanent
// responses of different scopes are independent, and nobody can link reports of a device by them.
//
// The text of the permanent response also contains all true bits. Otherwise two values of one scope would have the same
// coins, and the bits in which their permanent responses differ would be bits in which the values differ.
//
//     scope              = metric \0 epoch \0 permanent fingerprint
//     cohort             = floor(u * m / 2^32), where u is the derived coin of "rappor/1/cohort" \0 scope
//     permanent response = true bits, each forced to 1, forced to 0 or kept by one of the k derived coins of
//                          "rappor/1/permanent" \0 scope \0 true bits
//     report             = permanent response, each bit sent with a new system coin
//
// Generalized randomized response is the second mechanism. Its report names one of k buckets. The own buckets of a
// device are the buckets of its value: one for a category, one for each item of a set. Random buckets are added until
// there are n own buckets (padding), or random own buckets are left out (cutting). With probability keep / 2^32 the report
// names one of the own buckets, else one of all k buckets. All coins are derived, so all reports of a value are equal:
//
//     report = the bucket that the n + 2 derived coins of "rappor/1/grr" \0 scope \0 true bits choose
//
// Functions that take `coins` as an argument have no other randomness. Tests run them for every outcome of the coins,
// with few bits.

import { concatBytes, encodeUtf8, readIntegers } from "./bytes.js";
import { ONE } from "./params.js";
import { expand } from "./secret.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("../index.js").Params} Params */

/**
 * Number of days at the end of an epoch that `chooseDay` never returns: one day until the report leaves, and seven days
 * for retries. Without them, a report of the last day would leave in the next epoch, in which the metric sends one
 * report only. The report of that epoch would then be late as well, and so on. With a larger number, the reports of all
 * devices are about fewer days.
 */
const EXCLUDED_DAYS = 8;

/**
 * Draw n system coins.
 * @type {Coins}
 */
export const drawSystemCoins = (n) => crypto.getRandomValues(new Uint32Array(n));

/**
 * Return the text that names a scope in the input of derived coins.
 * @param {string} metric
 * @param {string} epoch name of the epoch, such as "2026-Q4"; empty for life
 * @param {Params} params
 */
export function encodeScope(metric, epoch, params) {
  return `${metric}\0${epoch}\0${params.permanentFingerprint}`;
}

/**
 * Return one derived coin of a scope.
 * @param {CryptoKey} secret
 * @param {string} use the decision that the coin is for: "cohort", "day", "part" or "sample"
 * @param {string} scope text that `encodeScope` returned
 */
export async function deriveCoin(secret, use, scope) {
  return readIntegers(await expand(secret, `rappor/1/${use}\0${scope}`, 4))[0];
}

/**
 * Return the cohort of a device in a scope, an integer in [0, m). Each scope has another cohort. One cohort for all
 * metrics and epochs would be a pseudonym by which an observer could link the reports of a device.
 * @param {CryptoKey} secret
 * @param {string} scope
 * @param {Params} params
 */
export async function deriveCohort(secret, scope, params) {
  return Math.floor(((await deriveCoin(secret, "cohort", scope)) * params.m) / ONE); // exact: less than 2^53
}

/**
 * Return the permanent response to the true bits of a value. Equal arguments give equal responses.
 * @param {CryptoKey} secret
 * @param {string} scope
 * @param {Params} params
 * @param {Uint8Array} bits packed true bits: bit i is bit i mod 8 of byte i div 8
 * @returns {Promise<Uint8Array>} packed bits
 */
export async function derivePermanentResponse(secret, scope, params, bits) {
  const { keep, k, items = 1 } = params;
  const [use, n] = keep === undefined ? ["permanent", k] : ["grr", items + 2];
  const info = concatBytes(encodeUtf8(`rappor/1/${use}\0${scope}\0`), bits);
  const coins = readIntegers(await expand(secret, info, 4 * n));
  return drawPermanentResponse(bits, params, (count) => coins.slice(0, count));
}

/**
 * Force each bit to 1 with probability f / 2^32 and to 0 with f0 / 2^32, and keep it otherwise ([EPK14]
 * section 2, which has the same probability for both).
 * @param {Uint8Array} bits packed true bits
 * @param {Params} params
 * @param {Coins} coins
 * @returns {Uint8Array} packed bits
 */
export function drawPermanentResponse(bits, params, coins) {
  if (params.keep !== undefined) return drawBucket(bits, params, coins);
  const { f, f0, k } = params;
  const respond = (/** @type {number} */ bit, /** @type {number} */ u) => {
    if (u < f) return 1;
    return u < f + f0 ? 0 : bit;
  };
  return drawEachBit(bits, k, coins, respond);
}

/**
 * Send each bit as 1 with probability q / 2^32 if it is 1, and with p / 2^32 if it is 0 ([EPK14] section 2).
 * @param {Uint8Array} permanent packed bits of the permanent response
 * @param {Params} params
 * @param {Coins} coins
 * @returns {Uint8Array} packed bits of a report
 */
export function drawInstantaneousResponse(permanent, { k, keep, p, q }, coins) {
  if (keep !== undefined) return permanent; // generalized randomized response has no second noise
  return drawEachBit(permanent, k, coins, (bit, u) => (u < (bit ? q : p) ? 1 : 0));
}

/**
 * Draw the report of generalized randomized response: with probability keep / 2^32 it names one of the own buckets,
 * else one of all k buckets. The first n coins pad or cut the own buckets, the next one decides between both cases, and
 * the last one chooses the bucket.
 * @param {Uint8Array} bits packed true bits, a 1 for each own bucket before padding or cutting
 * @param {Params} params
 * @param {Coins} coins
 * @returns {Uint8Array} packed bits, of which exactly one is 1
 */
function drawBucket(bits, params, coins) {
  const { k, items: n = 1, keep = 0 } = params;
  const u = coins(n + 2);
  const own = chooseOwnBuckets(bits, params, u);
  const bucket = u[n] < keep ? own[scaleCoin(u[n + 1], n)] : scaleCoin(u[n + 1], k);
  const report = new Uint8Array(bits.length);
  report[bucket >> 3] = 1 << (bucket & 7);
  return report;
}

/**
 * Return n own buckets of a value in ascending order: pad its own buckets with random ones, or draw n of them.
 * @param {Uint8Array} bits packed true bits
 * @param {Params} params
 * @param {ArrayLike<number>} u at least n coins. Padding uses one coin for each bucket that is added, cutting uses n
 */
export function chooseOwnBuckets(bits, { k, items: n = 1 }, u) {
  /** @type {number[][]} buckets that are not own, and own buckets, in ascending order */
  const [free, own] = [[], []];
  for (let i = 0; i < k; i++) [free, own][(bits[i >> 3] >> (i & 7)) & 1].push(i);
  // Buckets are drawn from `pool` without replacement until `chosen` has n. Cutting: all of them from the own buckets.
  // Padding: the own buckets, and further ones from the free buckets.
  const [pool, chosen] = own.length > n ? [own, []] : [free, own];
  for (let i = 0; chosen.length < n; i++) chosen.push(...pool.splice(scaleCoin(u[i], pool.length), 1));
  return chosen.sort((a, b) => a - b);
}

/**
 * Return floor(u n / 2^32), which maps a coin to 0..n-1. Each result has floor(2^32 / n) coins or one more.
 * @param {number} u
 * @param {number} n at most 2,040, so that the product is exact
 */
function scaleCoin(u, n) {
  return Math.floor((u * n) / ONE);
}

/**
 * Return k packed bits. Bit i is computed from bit i of the input and from coin i.
 * @param {Uint8Array} bits packed bits of the input
 * @param {number} k
 * @param {Coins} coins
 * @param {(bit: number, u: number) => number} respond returns the bit of the result for a bit of the input and a coin
 */
function drawEachBit(bits, k, coins, respond) {
  const result = new Uint8Array(bits.length);
  const drawn = coins(k); // the client in Python draws the coins in the same order
  for (let i = 0; i < k; i++) {
    const bit = (bits[i >> 3] >> (i & 7)) & 1;
    result[i >> 3] |= respond(bit, drawn[i]) << (i & 7);
  }
  return result;
}

/**
 * Return the day of an epoch that a coin chooses: uniform in [0, days - EXCLUDED_DAYS), 0 for the first day.
 * @param {number} u a coin
 * @param {number} days days of the epoch, more than EXCLUDED_DAYS
 */
export function chooseDay(u, days) {
  return Math.floor((u * (days - EXCLUDED_DAYS)) / ONE); // exact: less than 2^41
}

/**
 * Return the part that a coin chooses. A part is chosen with probability threshold / 2^32. The last part has no
 * threshold and is chosen with the remaining probability.
 *
 *     parts prefix:3 (threshold 2^30), prefix:6 (2^30), whole    shares of the devices: 1/4, 1/4, 1/2
 * @template {{ name: string, threshold?: number }} Part
 * @param {readonly Part[]} parts
 * @param {number} u
 */
export function choosePart(parts, u) {
  let end = 0; // coins below it choose this part or an earlier one
  return parts.find(({ threshold }) => threshold === undefined || u < (end += threshold));
}
