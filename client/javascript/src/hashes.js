// Hash functions: SHA-256 by WebCrypto, and MurmurHash3_x86_32 of 16 bytes, which WebCrypto does not have.

import { encodeUtf8 } from "./bytes.js";

/**
 * Return the SHA-256 of a text in UTF-8.
 * @param {string} text
 * @returns {Promise<Uint8Array>} 32 bytes
 */
export async function sha256(text) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", /** @type {any} */ (encodeUtf8(text))));
}

/**
 * Return MurmurHash3_x86_32 of 16 bytes, as an unsigned integer. The reference implementation has the same constants
 * (Appleby, MurmurHash3.cpp).
 * @param {number[]} words the bytes as four little-endian 32-bit integers
 * @param {number} seed an unsigned 32-bit integer
 */
export function murmur3(words, seed) {
  let hash = seed;
  for (const word of words) {
    hash ^= Math.imul(rotateLeft(Math.imul(word, 0xcc9e2d51), 15), 0x1b873593);
    hash = Math.imul(rotateLeft(hash, 13), 5) + 0xe6546b64;
  }
  hash ^= 4 * words.length; // number of hashed bytes
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0; // bit operations give signed integers; >>> 0 makes the result unsigned
}

/**
 * Rotate a 32-bit integer to the left.
 * @param {number} word
 * @param {number} bits
 */
function rotateLeft(word, bits) {
  return (word << bits) | (word >>> (32 - bits));
}
