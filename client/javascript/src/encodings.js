// Encodings: the bits that a value sets. A value that fits nowhere sets no bit, because a missing report
// would reveal it. Until its report is drawn, a value is kept as its input: bits, or a text to hash.

import { integers } from "./bytes.js";
import { ReportError, entryOf } from "./errors.js";
import { murmur3, sha256 } from "./hashes.js";
import { normalize } from "./normalizers.js";

/** @typedef {import("../index.js").Params} Params */
/** @typedef {Pick<Params, "categories" | "encoding" | "h" | "k" | "m" | "normalize" | "part">} Shape */
/** @typedef {{ input: string | number[], fits: boolean }} EncoderInput the input of a value, and whether the value fits */

/** @type {WeakMap<Shape, Map<string, number>>} bits of the normalized categories by shape */
const CATEGORY_BITS = new WeakMap();

/**
 * @typedef {object} Encoding
 * @property {(value: any, shape: Shape) => EncoderInput} read raises ReportError for a value of the wrong
 *   kind; the message does not contain the value
 * @property {(up: number, down: number, shape: Shape) => number} worst the largest loss of two values, in
 *   nats
 */

/** @type {Encoding["worst"]} two values differ in two bits, once in each direction */
const bothDirections = (up, down) => up + down;

/** @type {Record<string, Encoding>} */
const ENCODINGS = {
  bloom: {
    read: (value, shape) => {
      const input = text(value, shape);
      return { input, fits: shape.normalize === "none" || input !== "" };
    },
    worst: (up, down, { h, k }) => {
      const more = Math.min(h, k - 1); // a Bloom filter has at least one bit
      const fewer = Math.min(h, k - more);
      return Math.max(more * up + fewer * down, fewer * up + more * down);
    },
  },
  onehot: {
    read: (value, shape) => {
      const bit = categoryBits(shape).get(text(value, shape));
      return { input: bit === undefined ? [] : [bit], fits: bit !== undefined };
    },
    worst: bothDirections,
  },
  boolean: {
    read: (value) => {
      if (typeof value !== "boolean") refuse("true or false", value);
      return { input: value ? [0] : [], fits: true };
    },
    worst: (up, down) => Math.max(up, down), // the two values differ in one bit
  },
  buckets: {
    read: (value, { categories }) => {
      if (typeof value !== "number" && typeof value !== "bigint") refuse("a number", value);
      const fits = value === value; // false for NaN only
      return { input: fits ? [categories.filter((edge) => Number(edge) <= value).length] : [], fits };
    },
    worst: bothDirections,
  },
};

/**
 * Refuse an unknown encoding.
 * @param {string} encoding
 */
export function checkEncoding(encoding) {
  entryOf(ENCODINGS, "encoding", encoding);
}

/**
 * Return the encoder input of a value; ReportError for a value of the wrong kind. No secret is needed.
 * @param {Shape} shape
 * @param {unknown} value
 */
export function readValue(shape, value) {
  return ENCODINGS[shape.encoding].read(value, shape);
}

/**
 * Return the packed bits of an encoder input: bit i is bit i mod 8 of byte i div 8.
 * @param {Shape} shape
 * @param {string | number[]} input
 * @param {number} cohort
 */
export async function encode(shape, input, cohort) {
  const packed = new Uint8Array(Math.ceil(shape.k / 8));
  const bits = typeof input === "string" ? await bloomBits(input, cohort, shape) : input;
  for (const bit of bits) packed[bit >> 3] |= 1 << (bit & 7);
  return packed;
}

/**
 * Return the loss of the two values whose bits differ most, in nats. `up` is the loss of a reported 1 and
 * `down` the loss of a reported 0.
 * @param {Shape} shape
 * @param {number} up
 * @param {number} down
 */
export function worstDifference(shape, up, down) {
  return ENCODINGS[shape.encoding].worst(up, down, shape);
}

/**
 * Return the Bloom bits of a string. SHA-256 decides which strings are equal; MurmurHash3 spreads them
 * over cohorts.
 * @param {string} value
 * @param {number} cohort
 * @param {Shape} shape
 */
async function bloomBits(value, cohort, { h, k, part }) {
  const [, length] = part.split(":");
  const n = Number(length);
  // A prefix counts characters, not UTF-16 units; n characters have at most 2 n units.
  const hashed = length ? Array.from(value.slice(0, 2 * n)).slice(0, n).join("") : value;
  const words = integers((await sha256(hashed)).subarray(0, 16));
  return Array.from({ length: h }, (_, j) =>
    Math.floor((murmur3(words, cohort * h + j) * k) / 2 ** 32),
  );
}

/**
 * @param {unknown} value
 * @param {Shape} shape
 */
function text(value, shape) {
  return typeof value === "string" ? normalize(shape.normalize, value) : refuse("a text", value);
}

/**
 * Return the bits of categories by normalized name. The first of two equal names owns the bit.
 * @param {Shape} shape
 */
function categoryBits(shape) {
  const known = CATEGORY_BITS.get(shape);
  if (known) return known;
  /** @type {Map<string, number>} */
  const bits = new Map();
  for (const [bit, category] of shape.categories.entries()) {
    const name = normalize(shape.normalize, category);
    if (!bits.has(name)) bits.set(name, bit);
  }
  CATEGORY_BITS.set(shape, bits);
  return bits;
}

/**
 * @param {string} kind
 * @param {unknown} value
 * @returns {never}
 */
function refuse(kind, value) {
  throw new ReportError(`a value must be ${kind}, got ${value === null ? "null" : typeof value}`);
}
