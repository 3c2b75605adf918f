// Conversions between bytes and texts.

import { ReportError } from "./errors.js";

const ENCODER = new TextEncoder();
const LONE_SURROGATE = /\p{Surrogate}/u;

/**
 * Return a text in UTF-8; ReportError for a lone surrogate, which TextEncoder would replace silently.
 * @param {string} text
 * @returns {Uint8Array}
 */
export function utf8(text) {
  if (LONE_SURROGATE.test(text)) {
    throw new ReportError("a value must be Unicode without a lone surrogate");
  }
  return ENCODER.encode(text);
}

/**
 * Concatenate byte strings.
 * @param {Uint8Array[]} parts
 * @returns {Uint8Array}
 */
export function concat(...parts) {
  return Uint8Array.from(parts.flatMap((part) => [...part]));
}

/**
 * Return numbers in lower-case hex with the same number of digits each, two by default.
 * @param {ArrayLike<number>} numbers
 * @param {number} [digits]
 */
export function hex(numbers, digits = 2) {
  return Array.from(numbers, (number) => number.toString(16).padStart(digits, "0")).join("");
}

/**
 * Return bytes in base64url without padding (RFC 4648 section 5).
 * @param {Uint8Array} bytes
 */
export function base64url(bytes) {
  const plain = btoa(String.fromCharCode(...bytes));
  return plain.replace(/=/g, "").replace(/\+/g, "-").replace(/\//g, "_");
}

/**
 * Return the bytes of a text that `base64url` wrote. Any other text may raise.
 * @param {string} text
 */
export function fromBase64url(text) {
  const plain = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
  return Uint8Array.from(plain, (letter) => letter.charCodeAt(0));
}

/**
 * Read little-endian 32-bit integers.
 * @param {Uint8Array} bytes
 * @returns {number[]}
 */
export function integers(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Array.from({ length: bytes.length / 4 }, (_, i) => view.getUint32(4 * i, true));
}
