// Which bits of a report a value sets. A value that fits nowhere sets none: silence would speak.
// What is kept of a value until its report is made is what the report tells: bits, or a text to hash.

import { integers } from "./bytes.js";
import { ReportError, entryOf } from "./errors.js";
import { murmur3, sha256 } from "./hashes.js";
import { normalize } from "./normalizers.js";

/** @typedef {import("../index.js").Params} Params */
/** @typedef {Pick<Params, "categories" | "encoding" | "h" | "k" | "m" | "normalize" | "other" | "part">} Shape */
/** @typedef {{ told: string | number[], isFit: boolean }} Read what is told of a value, and whether it can be */

const MOST_FLAGS = 10_000;
/** @type {WeakMap<Shape, Map<string, number>>} */
const NAMES = new WeakMap();

/**
 * @typedef {object} Encoding
 * @property {(value: any, shape: Shape) => Read} read raises ReportError for a value of the wrong
 *   kind, which it does not show
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
    read: (value, shape) => {
      const normal = text(value, shape);
      const isElsewhere = shape.other && namesOf(shape).has(normal);
      return { told: isElsewhere ? "" : normal, isFit: shape.normalize === "none" || normal !== "" };
    },
    worst: (up, down, { h, k }) => {
      const more = Math.min(h, k - 1); // the other filter is not empty
      const fewer = Math.min(h, k - more);
      return Math.max(more * up + fewer * down, fewer * up + more * down);
    },
  },
  onehot: {
    read: (value, shape) => {
      const normal = text(value, shape);
      const found = indices([normal], shape);
      const told = !found.length && shape.other && normal ? [shape.k - 1] : found;
      return { told, isFit: told.length === 1 };
    },
    worst: bothWays,
  },
  boolean: {
    read: (value) => {
      if (typeof value !== "boolean") refuse("true or false", value);
      return { told: value ? [0] : [], isFit: true };
    },
    worst: eachBit,
  },
  flags: {
    read: (value, shape) => {
      const names = flagNames(value, shape);
      const found = indices(names, shape);
      return { told: [...new Set(found)], isFit: found.length === names.length };
    },
    worst: eachBit,
  },
  buckets: {
    read: (value, { categories }) => {
      if (typeof value !== "number" && typeof value !== "bigint") refuse("a number", value);
      const isFit = value === value;
      return { told: isFit ? [categories.filter((edge) => Number(edge) <= value).length] : [], isFit };
    },
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
 * Return what is told of a value; ReportError for one of the wrong kind. It needs no secret.
 * @param {Shape} shape
 * @param {unknown} value
 */
export function readValue(shape, value) {
  return ENCODINGS[shape.encoding].read(value, shape);
}

/**
 * Return the packed bits of what is told: bit i is bit i mod 8 of byte i div 8.
 * @param {Shape} shape
 * @param {string | number[]} told
 * @param {number} cohort
 */
export async function encode(shape, told, cohort) {
  const packed = new Uint8Array(Math.ceil(shape.k / 8));
  const bits = typeof told === "string" ? await hashed(told, cohort, shape) : told;
  for (const bit of bits) packed[bit >> 3] |= 1 << (bit & 7);
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
  const cut = length ? Array.from(value.slice(0, 2 * n)).slice(0, n).join("") : value;
  const words = integers((await sha256(cut)).subarray(0, 16));
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
  return names.map((name) => namesOf(shape).get(name) ?? -1).filter((bit) => bit >= 0);
}

/**
 * Return the bits of categories by their normalized names.
 * @param {Shape} shape
 */
function namesOf(shape) {
  const known = NAMES.get(shape);
  if (known) return known;
  /** @type {Map<string, number>} */
  const names = new Map();
  for (const [bit, category] of shape.categories.entries()) {
    const name = normalize(shape.normalize, category);
    if (!names.has(name)) names.set(name, bit);
  }
  NAMES.set(shape, names);
  return names;
}

/**
 * @param {string} kind
 * @param {unknown} value
 * @returns {never}
 */
function refuse(kind, value) {
  throw new ReportError(`a value must be ${kind}, got ${value === null ? "null" : typeof value}`);
}
