// Conversions between bytes, texts and integers: UTF-8, hex, base64url, and little-endian 32-bit integers.

import { ReportError } from "./errors.js";

const ENCODER = new TextEncoder();
/** Matches half of a surrogate pair without the other half, which UTF-8 cannot express. */
export const LONE_SURROGATE = /\p{Surrogate}/u; // with the flag u, a pair is one character and no match

/**
 * Return a text in UTF-8.
 * @param {string} text
 * @returns {Uint8Array}
 * @throws {ReportError} the text contains a lone surrogate, which UTF-8 cannot express
 */
export function encodeUtf8(text) {
  // TextEncoder would replace a lone surrogate by U+FFFD. Different texts would then have equal bytes, and
  // the client in Python refuses such a text.
  if (LONE_SURROGATE.test(text)) {
    throw new ReportError("a value must be Unicode without a lone surrogate");
  }
  return ENCODER.encode(text);
}

/**
 * Concatenate byte arrays.
 * @param {Uint8Array[]} parts
 * @returns {Uint8Array}
 */
export function concatBytes(...parts) {
  return Uint8Array.from(parts.flatMap((part) => [...part]));
}

/**
 * Return numbers in lower-case hex, all with the same number of digits.
 * @param {ArrayLike<number>} numbers
 * @param {number} [digits] digits of each number: 2 for bytes, 8 for 32-bit integers
 */
export function toHex(numbers, digits = 2) {
  return Array.from(numbers, (number) => number.toString(16).padStart(digits, "0")).join("");
}

/**
 * Return bytes in base64url without padding (RFC 4648 section 5).
 * @param {Uint8Array} bytes
 */
export function toBase64url(bytes) {
  const plain = btoa(String.fromCharCode(...bytes));
  return plain.replace(/=/g, "").replace(/\+/g, "-").replace(/\//g, "_");
}

/**
 * Return the bytes of a text that `toBase64url` wrote. The function checks nothing: another text gives other
 * bytes, or raises the error of atob.
 * @param {string} text
 */
export function fromBase64url(text) {
  const plain = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
  return Uint8Array.from(plain, (letter) => letter.charCodeAt(0));
}

/**
 * Read bytes as little-endian unsigned 32-bit integers.
 * @param {Uint8Array} bytes a multiple of four bytes
 * @returns {number[]}
 */
export function readIntegers(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Array.from({ length: bytes.length / 4 }, (_, i) => view.getUint32(4 * i, true));
}
