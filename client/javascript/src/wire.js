// Uploads: one report in an upload, under an id that stays the same over all retries.

import { base64url } from "./bytes.js";

/** @typedef {import("../index.js").Report} Report */

/** Return 16 fresh random bytes as 22 characters of base64url. */
export function newId() {
  return base64url(crypto.getRandomValues(new Uint8Array(16)));
}

/**
 * Return the body of POST /v1/reports. Equal reports give equal texts.
 * @param {string} id
 * @param {Report[]} reports
 */
export function uploadJson(id, reports) {
  const written = reports.map(({ metric, params, cohort, bits }) => ({
    metric,
    params,
    cohort,
    bits,
  }));
  return JSON.stringify({ v: 1, id, reports: written });
}
