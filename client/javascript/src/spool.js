// Finished reports on their way: waiting, in an upload of their own, and sent, for the person to
// see. An upload's id and body are fixed before it first leaves and never change.

import { DAY, dayOf } from "./calendar.js";
import { count } from "./device.js";
import { sum } from "./numbers.js";
import { forget } from "./reservoir.js";
import { newId, uploadJson } from "./wire.js";

/** @typedef {import("../index.js").Limits} Limits */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Pending} Pending */
/** @typedef {import("../index.js").Sent} Sent */
/** @typedef {import("../documents.js").Spool} Spool */
/** @typedef {import("../documents.js").Waiting} Waiting */
/** @typedef {{ now: number, limits: Limits, atHand?: Pending }} Moment with what the page has at hand */

export const GIVE_UP = 7 * DAY; // the collector remembers ids for 14 days
const NOTE_BYTES = 128;

/**
 * Return how many finished reports have no answer yet.
 * @param {Spool} spool
 */
export function nWaiting({ reports, uploads }) {
  return reports.length + uploads.length;
}

/**
 * Drop and count the oldest waiting reports until the others are within the limits.
 * @param {Device} device
 * @param {Spool} spool
 * @param {Limits} limits
 */
export function trim(device, { reports }, limits) {
  const size = () => sum(reports.map(({ bits }) => NOTE_BYTES + bits.length));
  while (reports.length > limits.reports || size() > limits.bytes) {
    reports.shift();
    count(device, "dropped_full");
  }
}

/**
 * Move a report into an upload of its own, which links it to no other.
 * @param {Spool} spool
 * @param {Waiting} report
 * @returns {Pending}
 */
export function build(spool, report) {
  spool.reports.splice(spool.reports.indexOf(report), 1);
  const id = newId();
  const upload = {
    id,
    body: uploadJson(id, [report]),
    metric: report.metric,
    attempts: 0,
    first: 0,
    claimed: 0,
    backoff: 0,
  };
  spool.uploads.push(upload);
  return upload;
}

/**
 * Drop and count the waiting reports of some metrics that were due at such a time, but each one's last.
 * @param {Device} device
 * @param {Spool} spool
 * @param {(report: { metric: string }) => boolean} isOne
 * @param {number} since
 * @param {number} before
 */
export function giveUp(device, spool, isOne, since, before) {
  const last = new Map(spool.reports.map((report) => [report.metric, report]));
  const isKept = (/** @type {Waiting} */ report) =>
    !isOne(report) || last.get(report.metric) === report || report.due < since || before <= report.due;
  drop(device, spool, isKept, "given_up");
}

/**
 * Drop and count all waiting reports but some.
 * @param {Device} device
 * @param {Spool} spool
 * @param {(report: Waiting) => boolean} isKept
 * @param {string} status
 */
function drop(device, spool, isKept, status) {
  const before = spool.reports.length;
  spool.reports = spool.reports.filter(isKept);
  if (spool.reports.length < before) count(device, status, before - spool.reports.length);
}

/**
 * Let no report wait longer than until then: a later moment is of a clock that was wrong.
 * @param {Spool} spool
 * @param {number} latest
 */
export function hasten(spool, latest) {
  for (const report of spool.reports) report.due = Math.min(report.due, latest);
}

/**
 * Close an upload with its status. It stays in the log, which forgets the oldest first.
 * @param {Device} device
 * @param {Spool} spool
 * @param {Sent[]} log
 * @param {string} id
 * @param {string} status
 * @param {Moment} at
 */
export function settle(device, spool, log, id, status, { now, limits, atHand }) {
  const at = spool.uploads.findIndex((upload) => upload.id === id);
  if (at < 0) return; // another tab got the answer first, or the person opted out
  const [upload] = spool.uploads.splice(at, 1);
  count(device, status.split(":")[0]); // without its reason
  if (mayHaveLeft(upload, atHand)) log.push(sent(upload, status, now));
  log.splice(0, log.length - limits.log);
}

/**
 * Drop what waits of some metrics.
 * @param {Device} device
 * @param {Spool} spool
 * @param {Sent[]} log
 * @param {Set<string>} names
 * @param {Moment} at
 */
export function dropMetrics(device, spool, log, names, at) {
  drop(device, spool, ({ metric }) => !names.has(metric), "opted_out");
  for (const { id, metric } of [...spool.uploads]) {
    if (names.has(metric)) settle(device, spool, log, id, "opted_out", at);
  }
  for (const held of Object.values(device.held)) if (names.has(held.metric)) forget(held);
}

/**
 * Return every remembered upload that has left the device, or may have, the oldest first.
 * @param {Spool} spool
 * @param {Sent[]} log
 * @param {Pending} [atHand]
 * @returns {Sent[]}
 */
export function sentOf(spool, log, atHand) {
  const open = spool.uploads.filter((upload) => mayHaveLeft(upload, atHand));
  return [...log, ...open.map((upload) => sent(upload, "unanswered", 0))];
}

/**
 * Return whether an upload has left, or may have with a page that ended: with another one than this.
 * @param {Pending} upload
 * @param {Pending} [atHand] what this page, which goes on, has at hand
 */
function mayHaveLeft({ id, attempts, first }, atHand) {
  return attempts > 0 || (first > 0 && id !== atHand?.id);
}

/**
 * @param {Pending} upload
 * @param {string} status
 * @param {number} now
 * @returns {Sent}
 */
function sent({ first, claimed, backoff, ...upload }, status, now) {
  return { ...upload, day: dayOf(first || now), status };
}
