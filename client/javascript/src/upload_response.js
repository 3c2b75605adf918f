// Response of a collector to an upload: the status of its report, and the stops of metrics.
//
// An upload contains one report, so a complete response has one entry:
//
//     {"reports": [{"status": "accepted"}]}
//     {"reports": [{"status": "refused", "reason": "unknown metric"}], "stop": {"theme": "2026-12-24"}}
//
// What a response means for the upload:
//
//     HTTP status               body           result
//     200 to 299                as above       accepted, or refused: REASON, for good
//     200 to 299                any other      the upload is sent again: it may have been accepted
//     400, 409, 413, 415, 422   not read       refused: status N, for good
//     any other                 not read       the upload is sent again

import { NAME } from "./stops.js";

/** @typedef {import("../index.js").TransportResponse} TransportResponse */

/**
 * Statuses of HTTP by which a collector refuses the contents of an upload. A retry is useless: the same bytes would get
 * the same status.
 */
export const PERMANENT_STATUSES = [400, 409, 413, 415, 422];

/**
 * Read the response to an upload. Return undefined for a status of HTTP that is no success, and for a body that is
 * truncated or has another form: the upload has no result yet.
 * @param {TransportResponse} response
 * @returns {{ status: string, stop: unknown } | undefined} status of the report, and the stops that are requested
 */
export function readResponse({ status, body }) {
  if (Math.floor(status / 100) !== 2) return undefined;
  try {
    const { reports, stop } = JSON.parse(body);
    const [{ status: reportStatus, reason }] = reports;
    if (reports.length !== 1 || reportStatus === undefined) return undefined;
    if (reportStatus === "accepted") return { status: reportStatus, stop };
    // The reason enters the log, which a person reads, so it must be a short text of letters and digits. A forged
    // response could contain anything.
    const word = typeof reason === "string" && NAME.test(reason) ? reason : "no reason given";
    return { status: `refused: ${word}`, stop };
  } catch {
    return undefined;
  }
}
