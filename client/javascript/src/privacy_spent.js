// Privacy loss of a device so far, in nats, computed from its scopes when somebody asks.

import { sum } from "./collections.js";
import { epsilonReports } from "./loss.js";
import { reservedByYear } from "./reservation.js";

/** @typedef {import("../index.js").PrivacySpent} PrivacySpent */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Scope} Scope */

/**
 * Return the loss in all, the loss by metric, and the nats reserved by year. The loss of a metric is the
 * sum over its scopes, each of which has one permanent response.
 * @param {Device} device
 * @returns {PrivacySpent}
 */
export function privacySpent(device) {
  const names = new Set(device.scopes.map(({ metric }) => metric));
  /** @type {PrivacySpent["metrics"]} */
  const metrics = {};
  for (const name of names) {
    const scopes = device.scopes.filter(({ metric }) => metric === name);
    const nats = sum(scopes.map((scope) => lossOf(device, scope)));
    const entry = { nats, scopes: scopes.length, reports: reportCount(scopes) };
    metrics[name] = entry;
  }
  // After a loss of the state nobody knows what was spent before.
  const isUnknown = device.lost !== undefined;
  const nats = isUnknown ? Infinity : sum(Object.values(metrics).map((metric) => metric.nats));
  return { nats, metrics, reserved: reservedByYear(device) };
}

/**
 * Return the number of reports of scopes.
 * @param {Scope[]} scopes
 */
export function reportCount(scopes) {
  return sum(scopes.flatMap(({ reports }) => Object.values(reports)));
}

/**
 * @param {Device} device
 * @param {Scope} scope
 */
function lossOf({ params }, { reports }) {
  return epsilonReports(Object.entries(reports).map(([fingerprint, n]) => [params[fingerprint], n]));
}
