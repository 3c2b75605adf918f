// The spool: the finished reports of a device, from the end of their interval to the log of uploads.
//
// A report goes through these lists:
//
//     spool.reports    finished reports, the oldest first. Each has a time from which on it may leave (`sendAfter`)
//     spool.uploads    uploads of one report each, with an id: an attempt to send it was made, or is made next
//     log              uploads with a result. The person whose device this is can read them (`sentUploads`)
//
// A report becomes an upload of its own, because an upload with two reports would link them to one device. The id and
// the body of an upload are written once, before its first attempt. So all attempts send the same bytes under the same
// id, and the collector counts the report once.
//
// An upload has one of these results, which is its status in the log and counted in the event counters:
//
//     accepted           the collector has counted the report
//     refused: REASON    the collector has refused the report
//     given_up           the time in which the upload may leave has passed
//     opted_out          the person refuses the metric
//
// A finished report that never left is dropped without an entry of the log, and counted: as given_up, as opted_out, or
// as dropped_full. Example: `limits.reports = 200`, and a device without network. The 201st finished report drops the
// oldest one, which is counted as dropped_full.

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
/** @typedef {{ now: number, limits: QueueLimits, endUpload?: QueuedUpload }} LogContext `mayHaveLeft` explains `endUpload` */

/**
 * Seconds after which an upload or a report is given up. The collector remembers the ids of uploads for 14 days. The
 * other seven days are left for wrong clocks. With a larger number, a retry might be counted a second time.
 */
export const GIVE_UP_SECONDS = 7 * DAY;
/**
 * Largest difference in seconds between a stored time and the present time. If the difference is larger, one of the two
 * times was read from a wrong clock.
 */
export const IMPLAUSIBLE_SECONDS = 365 * DAY;
/**
 * Size of a stored report without its bits, in bytes: an estimate of the names and numbers beside them. With a larger
 * number, fewer reports fit into the limit `bytes` of the queue.
 */
const REPORT_BYTES = 128;

/**
 * Return the number of finished reports without a result.
 * @param {Spool} spool
 */
export function countQueued({ reports, uploads }) {
  return reports.length + uploads.length;
}

/**
 * Drop the oldest finished reports until the others are within the limits, and count the dropped reports.
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
 * Move a finished report into an upload of its own, with a new id.
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
    first: 0, // time of the first attempt: none yet
    claimed: 0, // end of the claim of the tab that sends the upload: no tab yet
    backoff: 0,
  };
  spool.uploads.push(upload);
  return upload;
}

/**
 * Drop and count the finished reports that are late: reports whose epoch has ended (`interval = "epoch"`), and reports
 * whose `sendAfter` was more than a week ago. Two kinds of reports with such a `sendAfter` stay:
 *
 * - The last report of each metric. On a page that is visited once a month, the last report is the only one. Without
 *   this exception such a device would never report.
 * - A report whose `sendAfter` was more than a year ago. It was stored by a wrong clock, or the clock is wrong now.
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
 * Limit the times from which on finished reports may leave. A later time was stored while the clock was ahead. Without
 * the limit, the report would wait until the right clock shows that time.
 * @param {Spool} spool
 * @param {number} latest latest time that a right clock can have stored
 */
export function limitSendAfter(spool, latest) {
  for (const report of spool.reports) report.sendAfter = Math.min(report.sendAfter, latest);
}

/**
 * Record the result of an upload: remove the upload from the queue, count its status, and add it to the log if it may
 * have left the device. The oldest entries of a full log are dropped.
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
 * Drop all reports of the metrics that the person refuses: pending reports, finished reports and uploads. The scopes
 * of these metrics stay stored, and so does the privacy loss that was reserved for them. Earlier reports may have left
 * the device, so this loss still counts, and a later report of the same scope must repeat its permanent response.
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
 * Return every upload that has left the device, or may have left it, as far as the log goes back, the oldest first. An
 * upload without a result has the status "unanswered".
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
 * An uploader claims an upload before it sends the upload (`backoff.js`). It then stores the number of attempts, the
 * time of the first attempt (`first`) and the end of the claim (`claimed`).
 *
 * A page that ends sends one upload as its last act. It has no time left to store that the upload was sent. So the page
 * stores the upload in advance, with the time of its first attempt and with 0 attempts. This gives four cases:
 *
 *     attempts   first     the upload                                               result
 *     above 0    above 0   was claimed by an uploader, and sent                     true
 *     0          0         was never sent                                           false
 *     0          above 0   is ready to leave with this page, which has not ended    false
 *     0          above 0   was ready to leave with another page, and perhaps did    true
 * @param {QueuedUpload} upload
 * @param {QueuedUpload} [endUpload] the upload that is ready to leave with this page
 */
function mayHaveLeft({ id, attempts, first }, endUpload) {
  return attempts > 0 || (first > 0 && id !== endUpload?.id);
}

/**
 * Return the entry of the log for an upload. It has the day of the first attempt and the status, and not the exact
 * times.
 * @param {QueuedUpload} upload
 * @param {string} status
 * @param {number} now
 * @returns {SentUpload}
 */
function toSentUpload({ first, claimed, backoff, ...upload }, status, now) {
  return { ...upload, day: dayOf(first || now), status };
}
