// The spool: the reports that have left their interval, and the log of uploads that a person can see.
//
// A report goes through these documents:
//
//     spool.reports    finished reports, the oldest first; each has a time from which on it may leave
//     spool.uploads    uploads of one report each, with an id; at least one attempt was made, or is imminent
//     log              uploads with a result, and uploads that were given up after an attempt
//
// The id and the body of an upload are fixed before its first attempt and never change. So a retry sends the same
// bytes, and the collector counts the report once.

import { dropPending } from "./admission.js";
import { sum } from "./collections.js";
import { DAY, dayOf } from "./periods.js";
import { addCount } from "./state.js";
import { drawId, writeUpload } from "./wire.js";

/** @typedef {import("../index.js").QueueLimits} QueueLimits */
/** @typedef {import("../index.js").SentUpload} SentUpload */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").FinishedReport} FinishedReport */
/** @typedef {import("../documents.js").QueuedUpload} QueuedUpload */
/** @typedef {import("../documents.js").Spool} Spool */
/** @typedef {{ now: number, limits: QueueLimits, endUpload?: QueuedUpload }} LogContext see `mayHaveLeft` for the upload */

/**
 * Seconds after which an upload or a report is given up. The collector remembers ids for 14 days, so a retry within
 * seven days is never counted twice, also if a clock is wrong by some days.
 */
export const GIVE_UP_SECONDS = 7 * DAY;
/** Seconds between two readings of the clock from which on one of the two is wrong. */
export const IMPLAUSIBLE_SECONDS = 365 * DAY;
/** Bytes of a stored report beside its bits, an estimate for the limit of the queue. */
const REPORT_BYTES = 128;

/**
 * Return the number of finished reports without a response of the collector.
 * @param {Spool} spool
 */
export function countQueued({ reports, uploads }) {
  return reports.length + uploads.length;
}

/**
 * Drop the oldest finished reports until the others are within the limits, and count them.
 * @param {Device} device
 * @param {Spool} spool
 * @param {QueueLimits} limits
 */
export function trimSpool(device, { reports }, limits) {
  const size = () => sum(reports.map(({ bits }) => REPORT_BYTES + bits.length));
  while (reports.length > limits.reports || size() > limits.bytes) {
    reports.shift();
    addCount(device, "dropped_full");
  }
}

/**
 * Move a report into an upload of its own. Two reports in one upload would be known to come from one device.
 * @param {Spool} spool
 * @param {FinishedReport} report
 * @returns {QueuedUpload} the new upload, which has had no attempt
 */
export function buildUpload(spool, report) {
  spool.reports.splice(spool.reports.indexOf(report), 1);
  const { metric, interval, leavesBefore } = report;
  const id = drawId();
  const upload = {
    id,
    body: writeUpload(id, [report]),
    metric,
    interval,
    leavesBefore,
    attempts: 0,
    first: 0,
    claimed: 0,
    backoff: 0,
  };
  spool.uploads.push(upload);
  return upload;
}

/**
 * Drop and count finished reports that are late: reports whose epoch has ended (`interval = "epoch"`), and reports that
 * could leave for more than a week. Two kinds of reports stay all the same:
 *
 * - the last report of each metric. On a page that is visited once a month, the last report is the only one;
 * - a report that could leave for more than a year. Its time was stored by a wrong clock.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 */
export function giveUpLateReports(device, spool, now) {
  dropReports(device, spool, ({ leavesBefore = Infinity }) => now < leavesBefore, "given_up");
  const last = new Map(spool.reports.map((report) => [report.metric, report]));
  const isKept = (/** @type {FinishedReport} */ report) =>
    last.get(report.metric) === report ||
    report.sendAfter < now - IMPLAUSIBLE_SECONDS ||
    report.sendAfter >= now - GIVE_UP_SECONDS;
  dropReports(device, spool, isKept, "given_up");
}

/**
 * Drop finished reports and count them.
 * @param {Device} device
 * @param {Spool} spool
 * @param {(report: FinishedReport) => boolean} isKept
 * @param {string} counter name of the event counter
 */
function dropReports(device, spool, isKept, counter) {
  const before = spool.reports.length;
  spool.reports = spool.reports.filter(isKept);
  if (spool.reports.length < before) addCount(device, counter, before - spool.reports.length);
}

/**
 * Limit the times from which on reports may leave. A later time was stored while the clock was ahead, and the
 * report would wait for as long as the clock was wrong.
 * @param {Spool} spool
 * @param {number} latest
 */
export function limitSendAfter(spool, latest) {
  for (const report of spool.reports) report.sendAfter = Math.min(report.sendAfter, latest);
}

/**
 * Record the result of an upload. The upload leaves the queue. It enters the log if it may have left the device; the
 * log forgets its oldest entries first.
 * @param {Device} device
 * @param {Spool} spool
 * @param {SentUpload[]} log
 * @param {string} id
 * @param {string} status "accepted", "refused: REASON", "given_up" or "opted_out"
 * @param {LogContext} context
 */
export function recordResult(device, spool, log, id, status, { now, limits, endUpload }) {
  const index = spool.uploads.findIndex((upload) => upload.id === id);
  if (index < 0) return; // another tab has recorded the result, or the person has refused the metric meanwhile
  const [upload] = spool.uploads.splice(index, 1);
  addCount(device, status.split(":")[0]); // without the reason: it comes from the collector and names no counter
  if (mayHaveLeft(upload, endUpload)) log.push(toSentUpload(upload, status, now));
  log.splice(0, log.length - limits.log);
}

/**
 * Drop all reports of some metrics: pending, finished, and in uploads. Scopes and reserved nats stay, because reports
 * of the metrics may have left before.
 * @param {Device} device
 * @param {Spool} spool
 * @param {SentUpload[]} log
 * @param {Set<string>} names
 * @param {LogContext} context
 */
export function dropMetrics(device, spool, log, names, context) {
  dropReports(device, spool, ({ metric }) => !names.has(metric), "opted_out");
  for (const { id, metric } of [...spool.uploads]) {
    if (names.has(metric)) recordResult(device, spool, log, id, "opted_out", context);
  }
  for (const pending of Object.values(device.pending)) {
    if (names.has(pending.metric)) dropPending(pending);
  }
}

/**
 * Return every remembered upload that has left the device, or may have left it, the oldest first. An upload without
 * a result has the status "unanswered".
 * @param {Spool} spool
 * @param {SentUpload[]} log
 * @param {QueuedUpload} [endUpload]
 * @returns {SentUpload[]}
 */
export function sentUploads(spool, log, endUpload) {
  const unanswered = spool.uploads.filter((upload) => mayHaveLeft(upload, endUpload));
  return [...log, ...unanswered.map((upload) => toSentUpload(upload, "unanswered", 0))];
}

/**
 * Return whether an upload has left the device, or may have left it.
 *
 * A page sends one upload while it ends, and cannot store that it did. Such an upload is dated (`first`) in advance
 * and has no attempts. It may have left with a page that has ended. `endUpload` is that upload of this page,
 * which has not left, because the page goes on.
 * @param {QueuedUpload} upload
 * @param {QueuedUpload} [endUpload]
 */
function mayHaveLeft({ id, attempts, first }, endUpload) {
  return attempts > 0 || (first > 0 && id !== endUpload?.id);
}

/**
 * Return the entry of the log for an upload: without the times of its attempts, and with its day and status.
 * @param {QueuedUpload} upload
 * @param {string} status
 * @param {number} now
 * @returns {SentUpload}
 */
function toSentUpload({ first, claimed, backoff, ...upload }, status, now) {
  return { ...upload, day: dayOf(first || now), status };
}
