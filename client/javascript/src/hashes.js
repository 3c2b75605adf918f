// SHA-256 of WebCrypto, and MurmurHash3_x86_32 of its first 16 bytes.

import { utf8 } from "./bytes.js";

/**
 * Return the SHA-256 of a text in UTF-8.
 * @param {string} text
 * @returns {Promise<Uint8Array>}
 */
export async function sha256(text) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", /** @type {any} */ (utf8(text))));
}

/**
 * Return the unsigned MurmurHash3_x86_32 of 16 bytes, which are passed as four little-endian integers.
 * @param {number[]} words
 * @param {number} seed
 */
export function murmur3(words, seed) {
  let hash = seed;
  for (const word of words) {
    hash ^= Math.imul(rotateLeft(Math.imul(word, 0xcc9e2d51), 15), 0x1b873593);
    hash = Math.imul(rotateLeft(hash, 13), 5) + 0xe6546b64;
  }
  hash ^= 4 * words.length;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}

/**
 * @param {number} x
 * @param {number} n
 */
function rotateLeft(x, n) {
  return (x << n) | (x >>> (32 - n));
}
