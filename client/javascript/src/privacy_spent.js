// Privacy loss of a device so far, in nats.
//
// The loss of a scope (one metric in one epoch under one permanent response) is that of its reports: epsilon_n of n
// reports. The losses of different scopes add (sequential composition), because their coins are independent.

import { sum } from "./collections.js";
import { epsilonReports } from "./loss.js";
import { sumByYear } from "./reservation.js";

/** @typedef {import("../index.js").PrivacySpent} PrivacySpent */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Scope} Scope */

/**
 * Return the loss of a device in all and by metric, and the nats reserved by calendar year.
 * @param {Device} device
 * @returns {PrivacySpent}
 */
export function privacySpent(device) {
  const names = new Set(device.scopes.map(({ metric }) => metric));
  /** @type {PrivacySpent["metrics"]} */
  const metrics = {};
  for (const name of names) {
    const scopes = device.scopes.filter(({ metric }) => metric === name);
    const nats = sum(scopes.map((scope) => computeScopeLoss(device, scope)));
    metrics[name] = { nats, scopes: scopes.length, reports: countReports(scopes) };
  }
  // If the device was lost once, nobody knows what it had spent before.
  const isUnknown = device.lost !== undefined;
  const nats = isUnknown ? Infinity : sum(Object.values(metrics).map((metric) => metric.nats));
  return { nats, metrics, reserved: sumByYear(device) };
}

/**
 * Return the number of reports of some scopes.
 * @param {Scope[]} scopes
 */
export function countReports(scopes) {
  return sum(scopes.flatMap(({ reports }) => Object.values(reports)));
}

/**
 * Return the loss of a scope's reports. They may have several parameter sets, which differ in p and q.
 * @param {Device} device
 * @param {Scope} scope
 */
function computeScopeLoss({ params }, { reports }) {
  return epsilonReports(Object.entries(reports).map(([fingerprint, n]) => [params[fingerprint], n]));
}
