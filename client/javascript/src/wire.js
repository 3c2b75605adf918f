// The wire format: the JSON text of an upload. An upload contains one report and an id. All attempts to send the upload
// have the same id, so that the collector counts the report once.

import { toBase64url } from "./bytes.js";

/** @typedef {import("../index.js").Report} Report */

/** Return a new random id: 16 random bytes as 22 characters of base64url. Two ids are never equal in practice. */
export function drawId() {
  return toBase64url(crypto.getRandomValues(new Uint8Array(16)));
}

/**
 * Return the body of an upload, for the request POST /v1/reports.
 *
 *     {"v":1,"id":"...","reports":[{"metric":"theme","params":"9f86d081884c7d65","cohort":0,"bits":"Aw"}]}
 * @param {string} id
 * @param {Report[]} reports records with further properties, such as `sendAfter`, which are not written
 */
export function writeUpload(id, reports) {
  const written = reports.map(({ metric, params, cohort, bits }) => ({
    metric,
    params,
    cohort,
    bits,
  }));
  return JSON.stringify({ v: 1, id, reports: written });
}
