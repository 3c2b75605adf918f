// Hosts and registrable domains of web addresses, equal to those in Python in every character. International
// names follow IDNA 2003 (RFC 3490, RFC 3491) with Unicode 3.2, whose tables are part of this package: the
// tables of a browser change with its updates. The module is loaded if a metric needs hosts.

import { ownEntry } from "./collections.js";
import { LATER, LEFT, MAPPED, PROHIBITED, RIGHT } from "../data/idna_table.js";

const AUTHORITY_END = /[/?#\\]/;
const DRIVE = /^[A-Za-z]:(?:$|[?#\\]|\/(?!\/))/; // start of a path of Windows, no host with an empty port
const DOTS = /[.\u3002\uff0e\uff61]/;
const HOST = /^[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*$/;
const LONGEST = 63; // characters of a label in ASCII
const SCHEME = /^(?:[A-Za-z][A-Za-z0-9+.-]*:)?$/;

/** A label contains a character or has a length that no host allows. */
class NoHost extends Error {}

/**
 * Return the lower-case ASCII host of a URL or of a bare host; the empty text if there is none.
 * @param {string} text without white space around it
 */
export function hostOf(text) {
  if (DRIVE.test(text)) return "";
  // A port may be empty or begin with zeros (RFC 3986 section 3.2.3).
  const host = authorityOf(text).replace(/:0*[0-9]{0,5}$/, "");
  if (host.startsWith("[")) return isIpv6(host) ? toLowerAscii(host) : "";
  try {
    const ascii = toLowerAscii(isAscii(host) ? checkLabels(host) : encodeLabels(host)).replace(/\.$/, "");
    return HOST.test(ascii) ? ascii : "";
  } catch (error) {
    if (error instanceof NoHost) return "";
    throw error;
  }
}

/**
 * Return the registrable domain of a text's host. Public suffixes and IP addresses are returned whole.
 * @param {string} text
 * @param {Suffixes} suffixes
 */
export function domainOf(text, suffixes) {
  const host = hostOf(text);
  const labels = host.split(".");
  if (!host || host.startsWith("[") || /^\d+$/.test(labels[labels.length - 1])) return host;
  const n = nPublic(labels.slice().reverse(), suffixes);
  return labels.slice(-n - 1).join(".");
}

/** @typedef {Map<string, { mark: string, below: Suffixes }>} Suffixes */

/**
 * Read the tree of public suffixes: labels from the last one on, each with its mark and its children in
 * brackets.
 * @param {string} text
 * @returns {Suffixes}
 */
export function readSuffixes(text) {
  /** @type {Suffixes[]} */
  const open = [new Map()];
  /** @type {Suffixes} */
  let last = open[0];
  for (const [, label, mark, bracket] of text.matchAll(/([^!?(),]+)([!?]?)|([()])/g)) {
    if (bracket === "(") open.push(last);
    else if (bracket === ")") open.pop();
    else open[open.length - 1].set(label, { mark, below: (last = new Map()) });
  }
  return open[0];
}

/**
 * Return the number of a host's public labels, counted from the last one. The longest rule decides. A
 * wildcard also makes its own root public, and a host without a rule has one public label.
 * @param {string[]} labels the last label of the host first
 * @param {Suffixes} suffixes
 */
function nPublic(labels, suffixes) {
  let n = 1;
  let level = suffixes;
  for (const [i, label] of labels.entries()) {
    const rule = level.get(label);
    if (!rule) break;
    if (rule.mark !== "?") n = rule.mark ? i : i + 1;
    level = rule.below;
    if (level.has("*")) n = Math.min(i + 2, labels.length);
  }
  return n;
}

/** @param {string} text */
function authorityOf(text) {
  const at = text.indexOf("//");
  const isUrl = at >= 0 && SCHEME.test(text.slice(0, at));
  const [authority] = (isUrl ? text.slice(at + 2) : text).split(AUTHORITY_END);
  return isUrl ? authority.slice(authority.lastIndexOf("@") + 1) : authority;
}

/**
 * Return an ASCII host; NoHost if a label is too long or empty. The last label may be empty.
 * @param {string} host
 */
function checkLabels(host) {
  const labels = host.split(".");
  const isLong = labels.some((label) => label.length > LONGEST);
  if (isLong || labels.slice(0, -1).includes("")) throw new NoHost();
  return host;
}

/**
 * Return a host with its labels in ASCII; NoHost for a character that Unicode 3.2 does not have.
 * @param {string} host
 */
function encodeLabels(host) {
  const isLater = Array.from(host).some((letter) => !isAscii(letter) && isIn(LATER, letter));
  if (isLater) throw new NoHost();
  const labels = host.split(DOTS);
  const end = labels[labels.length - 1] ? "" : "."; // a dot at the end separates no further label
  return labels.slice(0, labels.length - end.length).map(toAscii).join(".") + end;
}

/**
 * Return a label in ASCII (RFC 3490 section 4.1).
 * @param {string} label
 */
function toAscii(label) {
  const prepared = isAscii(label) ? label : nameprep(label);
  if (!isAscii(prepared) && prepared.startsWith("xn--")) throw new NoHost();
  const ascii = isAscii(prepared) ? prepared : `xn--${punycode(prepared)}`;
  if (!ascii || ascii.length > LONGEST) throw new NoHost();
  return ascii;
}

/**
 * Return a label prepared by nameprep (RFC 3491); NoHost for a prohibited label.
 * @param {string} label
 */
function nameprep(label) {
  const one = (/** @type {string} */ character) =>
    ownEntry(/** @type {Record<string, string>} */ (MAPPED), character) ?? character.toLowerCase();
  const prepared = Array.from(Array.from(label, one).join("").normalize("NFKC"));
  if (prepared.some((character) => isIn(PROHIBITED, character))) throw new NoHost();
  const rights = prepared.map((character) => isIn(RIGHT, character));
  if (rights.includes(true)) {
    const isMixed = prepared.some((character) => isIn(LEFT, character));
    if (isMixed || !rights[0] || !rights[rights.length - 1]) throw new NoHost();
  }
  return prepared.join("");
}

/**
 * Return a label in Punycode (RFC 3492 section 6.3).
 * @param {string} label
 */
function punycode(label) {
  const codes = Array.from(label, (character) => /** @type {number} */ (character.codePointAt(0)));
  const basic = codes.filter((code) => code < 128);
  let written = String.fromCharCode(...basic) + (basic.length ? "-" : "");
  let [n, delta, bias, handled] = [128, 0, 72, basic.length];
  for (; handled < codes.length; n++, delta++) {
    const next = Math.min(...codes.filter((code) => code >= n));
    delta += (next - n) * (handled + 1);
    n = next;
    for (const code of codes) {
      if (code < n) delta++;
      if (code !== n) continue;
      written += variableLength(delta, bias);
      bias = nextBias(delta, handled + 1, handled === basic.length);
      delta = 0;
      handled++;
    }
  }
  return written;
}

/**
 * Return a generalized variable-length integer (RFC 3492 section 3.3).
 * @param {number} delta
 * @param {number} bias
 */
function variableLength(delta, bias) {
  const digit = (/** @type {number} */ value) => String.fromCharCode(value + (value < 26 ? 97 : 22));
  let written = "";
  for (let k = 36; ; k += 36) {
    const t = Math.min(Math.max(k - bias, 1), 26);
    if (delta < t) return written + digit(delta);
    written += digit(t + ((delta - t) % (36 - t)));
    delta = Math.floor((delta - t) / (36 - t));
  }
}

/**
 * Return the next bias (RFC 3492 section 6.1).
 * @param {number} delta
 * @param {number} n
 * @param {boolean} isFirst
 */
function nextBias(delta, n, isFirst) {
  let left = Math.floor(delta / (isFirst ? 700 : 2));
  left += Math.floor(left / n);
  let k = 0;
  for (; left > 455; k += 36) left = Math.floor(left / 35);
  return k + Math.floor((36 * left) / (left + 38));
}

/**
 * Return whether a text is an IPv6 address in brackets, without a zone.
 * @param {string} host
 */
function isIpv6(host) {
  if (!host.endsWith("]")) return false;
  const parts = host.slice(1, -1).split(":");
  if (parts.length < 3) return false;
  const last = parts[parts.length - 1];
  if (last.includes(".")) {
    if (!isIpv4(last)) return false;
    parts.splice(-1, 1, "0", "0");
  }
  const gaps = parts.slice(1, -1).filter((part) => !part).length;
  if (parts.length > 9 || gaps > 1 || (!gaps && parts.length !== 8)) return false;
  if ((!parts[0] && parts[1]) || (!parts[parts.length - 1] && parts[parts.length - 2])) return false;
  const groups = parts.filter((part) => part);
  return groups.length <= (gaps ? 7 : 8) && groups.every((part) => /^[0-9A-Fa-f]{1,4}$/.test(part));
}

/** @param {string} text */
function isIpv4(text) {
  const parts = text.split(".");
  return parts.length === 4 && parts.every((part) => /^(?:0|[1-9]\d{0,2})$/.test(part) && Number(part) < 256);
}

/** @param {string} text */
function isAscii(text) {
  return /^[\0-\x7f]*$/.test(text);
}

/**
 * Return a text with its ASCII letters in lower case.
 * @param {string} text
 */
function toLowerAscii(text) {
  return text.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
}

/** @type {Map<string, number[]>} ends of ranges by their text in the table */
const ENDS = new Map();

/**
 * Return whether a character is in one of the ranges of a table.
 * @param {string} ranges lengths in base 36, of characters outside and inside alternately
 * @param {string} character
 */
function isIn(ranges, character) {
  let ends = ENDS.get(ranges);
  if (!ends) {
    let end = 0;
    ends = ranges.split(" ").map((length) => (end += Number.parseInt(length, 36)));
    ENDS.set(ranges, ends);
  }
  const code = /** @type {number} */ (character.codePointAt(0));
  const n = ends.findIndex((end) => code < end);
  return n % 2 === 1; // n is -1 after the last range
}
