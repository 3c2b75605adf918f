// Hosts and registrable domains of web addresses, for the normalizers `host` and `domain`.
//
//     text                                     host                     domain
//     https://user@Www.Example.co.uk:8080/x    www.example.co.uk        example.co.uk
//     www.bücher.de                            www.xn--bcher-kva.de     xn--bcher-kva.de
//     [2001:DB8::1]:443                        [2001:db8::1]            [2001:db8::1]
//     two words                                the empty text           the empty text
//
// The results must equal the results of the client in Python in every character, because analysts normalize candidates
// in Python. So the module does not use the URL parser of the browser: international names follow IDNA 2003 (RFC 3490,
// nameprep RFC 3491, Punycode RFC 3492) with Unicode 3.2, as in Python, and the tables are part of this package. The
// tables of a browser change with its updates. The module is loaded only if a metric needs hosts.
//
// The steps for a host: cut it out of the address (`readAuthority`), split it into labels at the dots, prepare each
// label (`nameprep`: map characters, normalize, check), write labels with other characters than ASCII in Punycode.
//
// The tables of nameprep:
//
//     LATER         characters that later versions of Unicode have, and Unicode 3.2 has not
//     MAPPED        characters that are replaced, such as capital letters
//     PROHIBITED    characters that no host may contain
//     RIGHT, LEFT   letters of scripts that are written from right to left, and from left to right

import { LATER, LEFT, MAPPED, PROHIBITED, RIGHT } from "../data/idna_table.js";
import { getOwnEntry } from "./collections.js";

const AUTHORITY_END = /[/?#\\]/; // browsers read a backslash like a slash
// Start of a path of Windows, such as C:\x or C:/x. Otherwise "C:" would be a host with an empty port. With two slashes
// the letter is the scheme of a URL: c://host/x.
const DRIVE = /^[A-Za-z]:(?:$|[?#\\]|\/(?!\/))/;
const PORT = /:0*[0-9]{0,5}$/; // a port may be empty or begin with zeros (RFC 3986 section 3.2.3)
const DOTS = /[.\u3002\uff0e\uff61]/; // the full stop and the three others of RFC 3490 section 3.1
const HOST = /^[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*$/;
const MAX_LABEL_LENGTH = 63; // characters of a label in ASCII, the limit of DNS
const SCHEME = /^(?:[A-Za-z][A-Za-z0-9+.-]*:)?$/; // empty for an address that begins with //

/** Raised inside this module if a text is no host: a label has a character or a length that no host may have. */
class NoHost extends Error {}

/**
 * Return the lower-case ASCII host of a URL or of a bare host; the empty text if the text has none.
 * @param {string} text without white space around it
 */
export function extractHost(text) {
  if (DRIVE.test(text)) return "";
  const host = readAuthority(text).replace(PORT, "");
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
 * Return the registrable domain of a text: the public suffix of its host and the label before it. Example: the host
 * www.example.co.uk has the public suffix co.uk, and the registrable domain example.co.uk. A host that is a public
 * suffix or an IP address is returned unchanged.
 * @param {string} text
 * @param {Suffixes} suffixes
 */
export function extractDomain(text, suffixes) {
  const host = extractHost(text);
  const labels = host.split(".");
  const isIpAddress = host.startsWith("[") || /^\d+$/.test(labels[labels.length - 1]);
  if (!host || isIpAddress) return host;
  const n = countPublicLabels(labels.slice().reverse(), suffixes);
  return labels.slice(-n - 1).join(".");
}

/**
 * Tree of public suffixes. Its first level has the last labels of hosts, such as "uk", and `below` has the labels
 * before them, such as "co". Each label has a mark:
 *
 *     ""     the label and those after it are a public suffix: "co" below "uk"
 *     "?"    the label is no public suffix, and only leads to longer ones
 *     "!"    an exception from a wildcard: "www" below "ck" for the rules *.ck and !www.ck
 * @typedef {Map<string, { mark: string, below: Suffixes }>} Suffixes
 */

/**
 * Read the tree of public suffixes from its text, such as "com,uk(co,gov)": children stand in brackets.
 * @param {string} text
 * @returns {Suffixes}
 */
export function readSuffixes(text) {
  /** @type {Suffixes[]} nodes from the root to the node whose children are read */
  const open = [new Map()];
  /** @type {Suffixes} children of the last label, which a bracket may open */
  let last = open[0];
  for (const [, label, mark, bracket] of text.matchAll(/([^!?(),]+)([!?]?)|([()])/g)) {
    if (bracket === "(") open.push(last);
    else if (bracket === ")") open.pop();
    else open[open.length - 1].set(label, { mark, below: (last = new Map()) });
  }
  return open[0];
}

/**
 * Return the number of labels of a host's public suffix. The longest rule of the list decides.
 *
 * - Without a rule the last label is public.
 * - A wildcard stands for any label, and its parent is a public suffix, too: *.ck makes "x.ck" and "ck" public.
 * - An exception is one label shorter than its rule: !www.ck makes "ck" the suffix of www.ck.
 * @param {string[]} labels the last label of the host first
 * @param {Suffixes} suffixes
 */
function countPublicLabels(labels, suffixes) {
  let n = 1;
  let level = suffixes;
  for (const [i, label] of labels.entries()) {
    const rule = level.get(label);
    if (!rule) break;
    // i + 1 labels lead to this rule. "" is a suffix of so many labels, "!" one of a label less, and "?" none.
    if (rule.mark === "") n = i + 1;
    else if (rule.mark === "!") n = i;
    level = rule.below;
    // A wildcard below makes the next label public, too, if the host has one. If the list has an exception for that
    // label, the next turn of the loop reduces n again. Example: www.ck with the rules *.ck and !www.ck. The turn of
    // "ck" sets n = 2, and the turn of "www" sets n = 1.
    if (level.has("*")) n = Math.min(i + 2, labels.length);
  }
  return n;
}

/**
 * Return the authority of a URL without its user, or the part of a bare host before a path.
 * @param {string} text
 */
function readAuthority(text) {
  const at = text.indexOf("//");
  const isUrl = at >= 0 && SCHEME.test(text.slice(0, at));
  const [authority] = (isUrl ? text.slice(at + 2) : text).split(AUTHORITY_END);
  return isUrl ? authority.slice(authority.lastIndexOf("@") + 1) : authority;
}

/**
 * Return an ASCII host as it is. The last label may be empty, after a dot at the end.
 * @param {string} host
 * @throws {NoHost} a label is too long, or empty
 */
function checkLabels(host) {
  const labels = host.split(".");
  const isLong = labels.some((label) => label.length > MAX_LABEL_LENGTH);
  if (isLong || labels.slice(0, -1).includes("")) throw new NoHost();
  return host;
}

/**
 * Return a host with its labels in ASCII.
 * @param {string} host
 * @throws {NoHost} the host has a character that Unicode 3.2 does not have
 */
function encodeLabels(host) {
  const isLater = Array.from(host).some((letter) => !isAscii(letter) && isIn(LATER, letter));
  if (isLater) throw new NoHost();
  const labels = host.split(DOTS);
  // A dot at the end leaves an empty last label, which is no label of the host.
  const hasEndDot = !labels[labels.length - 1];
  if (hasEndDot) labels.pop();
  return labels.map(toAscii).join(".") + (hasEndDot ? "." : "");
}

/**
 * Return a label in ASCII (RFC 3490 section 4.1, ToASCII).
 * @param {string} label
 * @throws {NoHost} the label is empty, too long or prohibited
 */
function toAscii(label) {
  const prepared = isAscii(label) ? label : nameprep(label);
  // Step 5 of ToASCII: such a label would look as if it were in Punycode already.
  if (!isAscii(prepared) && prepared.startsWith("xn--")) throw new NoHost();
  const ascii = isAscii(prepared) ? prepared : `xn--${punycode(prepared)}`;
  if (!ascii || ascii.length > MAX_LABEL_LENGTH) throw new NoHost();
  return ascii;
}

/**
 * Prepare a label: map its characters, normalize it, and check it (RFC 3491).
 * @param {string} label
 * @throws {NoHost} a character is prohibited, or directions are mixed (RFC 3454 section 6)
 */
function nameprep(label) {
  const mapCharacter = (/** @type {string} */ character) =>
    getOwnEntry(/** @type {Record<string, string>} */ (MAPPED), character) ?? character.toLowerCase();
  const prepared = Array.from(Array.from(label, mapCharacter).join("").normalize("NFKC"));
  if (prepared.some((character) => isIn(PROHIBITED, character))) throw new NoHost();
  // A label with a right-to-left character must have no left-to-right character, and must begin and end with a
  // right-to-left character.
  const isRightToLeft = prepared.map((character) => isIn(RIGHT, character));
  if (isRightToLeft.includes(true)) {
    const isMixed = prepared.some((character) => isIn(LEFT, character));
    if (isMixed || !isRightToLeft[0] || !isRightToLeft[isRightToLeft.length - 1]) throw new NoHost();
  }
  return prepared.join("");
}

/**
 * Return a label in Punycode, without the prefix xn--. RFC 3492 section 6.3 has the same names.
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
      written += encodeVariableLength(delta, bias);
      bias = adaptBias(delta, handled + 1, handled === basic.length);
      delta = 0;
      handled++;
    }
  }
  return written;
}

/**
 * Return a generalized variable-length integer (RFC 3492 section 3.3) with the digits a to z and 0 to 9.
 * @param {number} delta
 * @param {number} bias
 */
function encodeVariableLength(delta, bias) {
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
 * Return the next bias (RFC 3492 section 6.1, with the constants of its section 5).
 * @param {number} delta
 * @param {number} points number of code points handled so far, with the present one
 * @param {boolean} isFirst
 */
function adaptBias(delta, points, isFirst) {
  let scaled = Math.floor(delta / (isFirst ? 700 : 2));
  scaled += Math.floor(scaled / points);
  let k = 0;
  for (; scaled > 455; k += 36) scaled = Math.floor(scaled / 35);
  return k + Math.floor((36 * scaled) / (scaled + 38));
}

/**
 * Return whether a text is an IPv6 address in brackets, without a zone (RFC 4291 section 2.2).
 * @param {string} host
 */
function isIpv6(host) {
  if (!host.endsWith("]")) return false;
  const parts = host.slice(1, -1).split(":");
  if (parts.length < 3) return false;
  const last = parts[parts.length - 1];
  if (last.includes(".")) {
    if (!isIpv4(last)) return false;
    parts.splice(-1, 1, "0", "0"); // an IPv4 address at the end stands for two groups
  }
  // "::" is a gap that stands for one or more groups of zeros. Splitting at ":" makes it an empty part: "1::2" gives
  // "1", "", "2". At an end it makes two empty parts: "::1" gives "", "", "1". So an inner part is empty for each gap.
  const gaps = parts.slice(1, -1).filter((part) => !part).length;
  // Nine parts are seven groups and a gap at an end. Without a gap there are eight groups.
  if (parts.length > 9 || gaps > 1 || (!gaps && parts.length !== 8)) return false;
  // A single colon at an end is wrong: an empty first or last part needs an empty neighbour.
  if ((!parts[0] && parts[1]) || (!parts[parts.length - 1] && parts[parts.length - 2])) return false;
  const groups = parts.filter((part) => part);
  return groups.length <= (gaps ? 7 : 8) && groups.every((part) => /^[0-9A-Fa-f]{1,4}$/.test(part));
}

/**
 * Return whether a text is an IPv4 address: four decimal numbers below 256 without leading zeros.
 * @param {string} text
 */
function isIpv4(text) {
  const parts = text.split(".");
  return parts.length === 4 && parts.every((part) => /^(?:0|[1-9]\d{0,2})$/.test(part) && Number(part) < 256);
}

/**
 * Return whether all characters of a text are ASCII.
 * @param {string} text
 */
function isAscii(text) {
  return /^[\0-\x7f]*$/.test(text);
}

/**
 * Return a text with its ASCII letters in lower case. `toLowerCase` would change other letters, too.
 * @param {string} text
 */
function toLowerAscii(text) {
  return text.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
}

/** @type {Map<string, number[]>} cache: ends of the ranges of a table, as code points */
const RANGE_ENDS = new Map();

/**
 * Return whether a table of characters contains a character.
 * @param {string} ranges lengths of ranges of code points in base 36: outside of the table and inside alternately
 * @param {string} character
 */
function isIn(ranges, character) {
  let ends = RANGE_ENDS.get(ranges);
  if (!ends) {
    let end = 0;
    ends = ranges.split(" ").map((length) => (end += Number.parseInt(length, 36)));
    RANGE_ENDS.set(ranges, ends);
  }
  const code = /** @type {number} */ (character.codePointAt(0));
  const index = ends.findIndex((end) => code < end);
  return index % 2 === 1; // index is -1 for a character after the last range, and -1 % 2 is -1
}
