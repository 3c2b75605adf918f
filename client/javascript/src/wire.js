// The wire format: the JSON text of an upload. An upload contains one report, under an id that stays the same
// over all attempts to send it, so that the collector counts the report once.

import { toBase64url } from "./bytes.js";

/** @typedef {import("../index.js").Report} Report */

/** Return a new random id: 16 bytes, of which no two collide, as 22 characters of base64url. */
export function drawId() {
  return toBase64url(crypto.getRandomValues(new Uint8Array(16)));
}

/**
 * Return the body of POST /v1/reports. Equal arguments give equal texts, because the keys are written in a
 * fixed order.
 *
 *     {"v":1,"id":"...","reports":[{"metric":"theme","params":"9f86d081884c7d65","cohort":0,"bits":"Aw"}]}
 * @param {string} id
 * @param {Report[]} reports other properties of the records, such as `sendAfter`, stay on the device
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
