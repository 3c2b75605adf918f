// The strict reading of an upload, as collectors do it: for tests, and for pages that show a person
// what was sent. No client needs it to send.

import { base64url, fromBase64url } from "./bytes.js";
import { ReportError } from "./errors.js";

/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../index.js").Report} Report */

const LONGEST_NUMBER = 4300; // digits, as the collector's reader has it
const TOKEN =
  /[\t\n\r ]*(?:([{}[\]:,])|("(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[\da-fA-F]{4}))*")|(-?(?:0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?)|(true|false|null))/y;

/**
 * Read an upload: its id and, in order, each report or what is wrong with it.
 * ReportError when the bytes are no upload.
 * @param {Uint8Array} body
 * @param {(metric: string, fingerprint: string) => Params | undefined} lookup
 * @returns {{ id: string, reports: (Report | ReportError)[] }}
 */
export function readUpload(body, lookup) {
  const upload = strictJson(decoded(body));
  if (!hasKeys(upload, ["v", "id", "reports"]) || upload.v !== 1) {
    throw new ReportError("an upload must have the keys v, id and reports, and v must be 1");
  }
  if (strictBytes(upload.id)?.length !== 16) {
    throw new ReportError("id must be 16 bytes in base64url");
  }
  if (!Array.isArray(upload.reports) || !upload.reports.length) {
    throw new ReportError("reports must be a list of at least one report");
  }
  return { id: upload.id, reports: upload.reports.map((/** @type {unknown} */ entry) => readReport(entry, lookup)) };
}

/**
 * @param {any} entry
 * @param {(metric: string, fingerprint: string) => Params | undefined} lookup
 */
function readReport(entry, lookup) {
  const isEntry = hasKeys(entry, ["metric", "params", "cohort", "bits"]);
  const isText = isEntry && typeof entry.metric === "string" && typeof entry.params === "string";
  const params = isText ? lookup(entry.metric, entry.params) : undefined;
  if (!params) return new ReportError("metric and params must be known here");
  const { metric, cohort } = entry;
  if (!(Number.isInteger(cohort) && 0 <= cohort && cohort < params.m)) {
    return new ReportError(`cohort must be an integer in [0, ${params.m - 1}]`);
  }
  const bits = strictBytes(entry.bits);
  if (bits?.length !== Math.ceil(params.k / 8)) return new ReportError("bits must be ceil(k/8) bytes");
  if (params.k % 8 && bits[bits.length - 1] >> params.k % 8) {
    return new ReportError("bits must be 0 past bit k - 1");
  }
  return { metric, params: params.fingerprint, cohort, bits: entry.bits };
}

/**
 * Read the one spelling that `base64url` writes; null for any other text.
 * @param {unknown} text
 * @returns {Uint8Array | null}
 */
export function strictBytes(text) {
  if (typeof text !== "string" || !/^[\w-]*$/.test(text) || text.length % 4 === 1) return null;
  const bytes = fromBase64url(text);
  return base64url(bytes) === text ? bytes : null; // else its spare bits are not 0
}

/** @param {Uint8Array} body */
function decoded(body) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body);
  } catch {
    throw new ReportError("an upload must be UTF-8");
  }
}

/**
 * @param {any} value
 * @param {string[]} keys
 */
function hasKeys(value, keys) {
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  return isObject && Object.keys(value).sort().join() === [...keys].sort().join();
}

/**
 * Read JSON in which no key stands twice; a number that is no integer reads as NaN.
 * @param {string} text
 */
function strictJson(text) {
  const tokens = tokensOf(text);
  let at = 0;
  const value = () => {
    const token = tokens[at++];
    if (token === "{") return object();
    if (token === "[") return list();
    if (token === undefined || "}]:,".includes(token)) throw notJson();
    return /^-?\d/.test(token) ? integer(token) : JSON.parse(token);
  };
  const object = () => {
    /** @type {Record<string, unknown>} */
    const entries = Object.create(null);
    if (tokens[at] === "}") return at++, entries;
    do {
      const key = tokens[at++];
      if (key?.[0] !== '"' || tokens[at++] !== ":") throw notJson();
      if (JSON.parse(key) in entries) throw new ReportError("keys must be distinct");
      entries[JSON.parse(key)] = value();
    } while (tokens[at++] === ",");
    if (tokens[at - 1] !== "}") throw notJson();
    return entries;
  };
  /** @returns {unknown[]} */
  const list = () => {
    /** @type {unknown[]} */
    const items = [];
    if (tokens[at] === "]") return at++, items;
    do items.push(value());
    while (tokens[at++] === ",");
    if (tokens[at - 1] !== "]") throw notJson();
    return items;
  };
  try {
    const document = /** @type {any} */ (value());
    if (at !== tokens.length) throw notJson();
    return document;
  } catch (error) {
    throw error instanceof RangeError ? notJson() : error; // thousands of brackets
  }
}

/** @param {string} text */
function tokensOf(text) {
  const tokens = [];
  TOKEN.lastIndex = 0;
  let end = 0;
  for (let found = TOKEN.exec(text); found; found = TOKEN.exec(text)) {
    end = TOKEN.lastIndex;
    tokens.push(found[0].replace(/^[\t\n\r ]+/, ""));
  }
  if (/[^\t\n\r ]/.test(text.slice(end))) throw notJson();
  return tokens;
}

/** @param {string} token */
function integer(token) {
  if (token.length > LONGEST_NUMBER) throw notJson();
  return /^-?\d+$/.test(token) ? Number(token) : NaN;
}

function notJson() {
  return new ReportError("an upload must be JSON of reasonable depth and numbers");
}
