// The spool: finished reports and their uploads, and the log of sent uploads that a person can see. The id
// and the body of an upload are fixed before its first attempt and never change.

import { dropPending } from "./admission.js";
import { DAY, dayOf } from "./calendar.js";
import { sum } from "./collections.js";
import { count } from "./state.js";
import { newId, uploadJson } from "./wire.js";

/** @typedef {import("../index.js").QueueLimits} QueueLimits */
/** @typedef {import("../index.js").SentUpload} SentUpload */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").FinishedReport} FinishedReport */
/** @typedef {import("../documents.js").QueuedUpload} QueuedUpload */
/** @typedef {import("../documents.js").Spool} Spool */
/** @typedef {{ now: number, limits: QueueLimits, atHand?: QueuedUpload }} Context `atHand` leaves when the page ends */

/** Seconds after which an upload or a report is given up. The collector remembers ids for 14 days. */
export const GIVE_UP = 7 * DAY;
/** Bytes of a stored report beside its bits, about. */
const REPORT_BYTES = 128;

/**
 * Return the number of finished reports without a response of the collector.
 * @param {Spool} spool
 */
export function queuedCount({ reports, uploads }) {
  return reports.length + uploads.length;
}

/**
 * Drop and count the oldest finished reports until the others are within the limits.
 * @param {Device} device
 * @param {Spool} spool
 * @param {QueueLimits} limits
 */
export function trim(device, { reports }, limits) {
  const size = () => sum(reports.map(({ bits }) => REPORT_BYTES + bits.length));
  while (reports.length > limits.reports || size() > limits.bytes) {
    reports.shift();
    count(device, "dropped_full");
  }
}

/**
 * Move a report into an upload of its own. An upload with two reports would link them.
 * @param {Spool} spool
 * @param {FinishedReport} report
 * @returns {QueuedUpload}
 */
export function buildUpload(spool, report) {
  spool.reports.splice(spool.reports.indexOf(report), 1);
  const id = newId();
  const upload = {
    id,
    body: uploadJson(id, [report]),
    metric: report.metric,
    interval: report.interval,
    leavesBefore: report.leavesBefore,
    attempts: 0,
    first: 0,
    claimed: 0,
    backoff: 0,
  };
  spool.uploads.push(upload);
  return upload;
}

/**
 * Drop and count the finished reports that could have left between two times, except the last report of
 * each metric. On a page that is seldom visited the last report is the only one.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} since
 * @param {number} before
 */
export function giveUp(device, spool, since, before) {
  const last = new Map(spool.reports.map((report) => [report.metric, report]));
  const isKept = (/** @type {FinishedReport} */ report) =>
    last.get(report.metric) === report || report.sendAfter < since || before <= report.sendAfter;
  drop(device, spool, isKept, "given_up");
}

/**
 * Drop and count the finished reports that had to leave before the epoch ended.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 */
export function giveUpLate(device, spool, now) {
  drop(device, spool, ({ leavesBefore = Infinity }) => now < leavesBefore, "given_up");
}

/**
 * Drop and count finished reports.
 * @param {Device} device
 * @param {Spool} spool
 * @param {(report: FinishedReport) => boolean} isKept
 * @param {string} status
 */
function drop(device, spool, isKept, status) {
  const before = spool.reports.length;
  spool.reports = spool.reports.filter(isKept);
  if (spool.reports.length < before) count(device, status, before - spool.reports.length);
}

/**
 * Limit the time at which reports may leave. A later time was stored under a wrong clock.
 * @param {Spool} spool
 * @param {number} latest
 */
export function limitDelay(spool, latest) {
  for (const report of spool.reports) report.sendAfter = Math.min(report.sendAfter, latest);
}

/**
 * Record the result of an upload. The upload leaves the queue and enters the log, which forgets its oldest
 * entries first.
 * @param {Device} device
 * @param {Spool} spool
 * @param {SentUpload[]} log
 * @param {string} id
 * @param {string} status
 * @param {Context} context
 */
export function recordResult(device, spool, log, id, status, { now, limits, atHand }) {
  const index = spool.uploads.findIndex((upload) => upload.id === id);
  if (index < 0) return; // another tab recorded the result before, or the person refused the metric
  const [upload] = spool.uploads.splice(index, 1);
  count(device, status.split(":")[0]); // without the reason, which the collector chose
  if (mayHaveLeft(upload, atHand)) log.push(sentUpload(upload, status, now));
  log.splice(0, log.length - limits.log);
}

/**
 * Drop all reports of some metrics: pending, finished, and in uploads.
 * @param {Device} device
 * @param {Spool} spool
 * @param {SentUpload[]} log
 * @param {Set<string>} names
 * @param {Context} context
 */
export function dropMetrics(device, spool, log, names, context) {
  drop(device, spool, ({ metric }) => !names.has(metric), "opted_out");
  for (const { id, metric } of [...spool.uploads]) {
    if (names.has(metric)) recordResult(device, spool, log, id, "opted_out", context);
  }
  for (const pending of Object.values(device.pending)) {
    if (names.has(pending.metric)) dropPending(pending);
  }
}

/**
 * Return every remembered upload that has left the device, or may have left it, the oldest first.
 * @param {Spool} spool
 * @param {SentUpload[]} log
 * @param {QueuedUpload} [atHand]
 * @returns {SentUpload[]}
 */
export function sentUploads(spool, log, atHand) {
  const open = spool.uploads.filter((upload) => mayHaveLeft(upload, atHand));
  return [...log, ...open.map((upload) => sentUpload(upload, "unanswered", 0))];
}

/**
 * Return whether an upload has left the device, or may have left it with a page that ended. The upload at
 * hand of this page has not left, because the page goes on.
 * @param {QueuedUpload} upload
 * @param {QueuedUpload} [atHand]
 */
function mayHaveLeft({ id, attempts, first }, atHand) {
  return attempts > 0 || (first > 0 && id !== atHand?.id);
}

/**
 * @param {QueuedUpload} upload
 * @param {string} status
 * @param {number} now
 * @returns {SentUpload}
 */
function sentUpload({ first, claimed, backoff, ...upload }, status, now) {
  return { ...upload, day: dayOf(first || now), status };
}
