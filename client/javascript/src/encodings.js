// Which bits of a report a value sets. A value that fits nowhere sets none: silence would speak.

import { integers, utf8 } from "./bytes.js";
import { ReportError, entryOf } from "./errors.js";
import { murmur3, sha256 } from "./hashes.js";
import { normalize } from "./normalizers.js";

/** @typedef {import("../index.js").Params} Params */
/** @typedef {Pick<Params, "categories" | "encoding" | "h" | "k" | "m" | "normalize" | "part">} Shape */

const MOST_FLAGS = 10_000;

/**
 * @typedef {object} Encoding
 * @property {(value: unknown, shape: Shape) => unknown} read returns a value that can be read
 *   twice, normalized; ReportError for one of the wrong kind, which it does not show
 * @property {(value: any, shape: Shape) => boolean} fits
 * @property {(value: any, cohort: number, shape: Shape) => number[] | Promise<number[]>} bits
 * @property {(up: number, down: number, shape: Shape) => number} worst the loss, in nats, of the
 *   two values whose bits differ most
 */

/** @type {Encoding["worst"]} */
const bothWays = (up, down) => up + down; // two bits differ, one each way
/** @type {Encoding["worst"]} */
const eachBit = (up, down, { k }) => k * Math.max(up, down);

/** @type {Record<string, Encoding>} */
const ENCODINGS = {
  bloom: {
    read: text,
    fits: (value, shape) => shape.normalize === "none" || value !== "",
    bits: hashed,
    worst: (up, down, { h, k }) => {
      const more = Math.min(h, k - 1); // the other filter is not empty
      const fewer = Math.min(h, k - more);
      return Math.max(more * up + fewer * down, fewer * up + more * down);
    },
  },
  onehot: {
    read: text,
    fits: (value, shape) => indices([value], shape).length === 1,
    bits: (value, _, shape) => indices([value], shape),
    worst: bothWays,
  },
  boolean: {
    read: (value) => (typeof value === "boolean" ? value : refuse("true or false", value)),
    fits: () => true,
    bits: (value) => (value ? [0] : []),
    worst: eachBit,
  },
  flags: {
    read: flagNames,
    fits: (names, shape) => indices(names, shape).length === names.length,
    bits: (names, _, shape) => indices(names, shape),
    worst: eachBit,
  },
  buckets: {
    read: (value) =>
      typeof value === "number" || typeof value === "bigint" ? value : refuse("a number", value),
    fits: (value) => value === value,
    bits: (value, _, { categories }) =>
      value === value ? [categories.filter((edge) => Number(edge) <= value).length] : [],
    worst: bothWays,
  },
};

/**
 * Refuse an encoding that this version does not know.
 * @param {string} encoding
 */
export function checkEncoding(encoding) {
  entryOf(ENCODINGS, "encoding", encoding);
}

/**
 * Return a value, normalized, that can be read twice; ReportError for one of the wrong kind.
 * It needs no secret.
 * @param {Shape} shape
 * @param {unknown} value
 */
export function readValue(shape, value) {
  return ENCODINGS[shape.encoding].read(value, shape);
}

/**
 * Return whether a value that was read is one that the encoding can tell.
 * @param {Shape} shape
 * @param {unknown} value
 */
export function fits(shape, value) {
  return ENCODINGS[shape.encoding].fits(value, shape);
}

/**
 * Return the packed bits of a value that was read: bit i is bit i mod 8 of byte i div 8.
 * @param {Shape} shape
 * @param {unknown} value
 * @param {number} cohort
 */
export async function encode(shape, value, cohort) {
  const packed = new Uint8Array(Math.ceil(shape.k / 8));
  for (const bit of await ENCODINGS[shape.encoding].bits(value, cohort, shape)) {
    packed[bit >> 3] |= 1 << (bit & 7);
  }
  return packed;
}

/**
 * Return the loss of the two values whose bits differ most: `up` is what ones can tell in a bit,
 * `down` what zeros can.
 * @param {Shape} shape
 * @param {number} up
 * @param {number} down
 */
export function worstDifference(shape, up, down) {
  return ENCODINGS[shape.encoding].worst(up, down, shape);
}

/**
 * SHA-256 decides which strings are alike, MurmurHash3 spreads them over cohorts.
 * @param {string} value
 * @param {number} cohort
 * @param {Shape} shape
 */
async function hashed(value, cohort, { h, k, part }) {
  const [, length] = part.split(":");
  const n = Number(length);
  const told = length ? Array.from(value.slice(0, 2 * n)).slice(0, n).join("") : value;
  const words = integers((await sha256(utf8(told))).subarray(0, 16));
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
 * @param {unknown} value
 * @param {Shape} shape
 */
function flagNames(value, shape) {
  const given = /** @type {Iterable<unknown>} */ (value);
  if (typeof value !== "object" || !given?.[Symbol.iterator]) return refuse("names", value);
  const names = [];
  for (const name of given) {
    if (names.push(text(name, shape)) > MOST_FLAGS) return refuse("at most 10,000 names", value);
  }
  return names;
}

/**
 * Return the bits of those names that are categories; names of none set none.
 * @param {string[]} names
 * @param {Shape} shape
 */
function indices(names, shape) {
  const known = shape.categories.map((category) => normalize(shape.normalize, category));
  return names.map((name) => known.indexOf(name)).filter((bit) => bit >= 0);
}

/**
 * @param {string} kind
 * @param {unknown} value
 * @returns {never}
 */
function refuse(kind, value) {
  throw new ReportError(`a value must be ${kind}, got ${value === null ? "null" : typeof value}`);
}
