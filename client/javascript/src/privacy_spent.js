// Privacy loss of a device so far, in nats.
//
// A scope is one metric in one epoch under one permanent fingerprint (scopes.js). All reports of a scope repeat one
// permanent response. So the loss of its n reports is epsilon_n: at most n times epsilon_1, the loss of one report, and
// at most epsilon_inf, the limit for many reports (loss.js has the formula). Different scopes have independent coins,
// so their losses add (sequential composition).
//
// Example: a metric has epsilon_1 = 2 nats and epsilon_inf = 4 nats.
//
//     reports                                     loss in nats
//     1 report in one quarter                     2
//     2 reports in one quarter                    epsilon_2, between 2 and 4
//     90 reports in one quarter                   at most 4
//     90 reports in each of two quarters          at most 4 + 4

import { sum } from "./collections.js";
import { epsilonReports } from "./loss.js";
import { sumByYear } from "./reservation.js";

/** @typedef {import("../index.js").PrivacySpent} PrivacySpent */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Scope} Scope */

/**
 * Return the loss of a device in all and by metric, and the nats that metrics have reserved in each calendar year. The
 * reserved nats of a year are larger than the loss in this year, or equal: a metric reserves the largest loss of a
 * whole year with its first event of the year (reservation.js).
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
  // The stored state of the device was lost once. Nobody knows how many reports had left before, so any finite loss
  // could be too small.
  const isUnknown = device.lost !== undefined;
  const nats = isUnknown ? Infinity : sum(Object.values(metrics).map((metric) => metric.nats));
  return { nats, metrics, reserved: sumByYear(device) };
}

/**
 * Return the number of reports that some scopes have had in all.
 * @param {Scope[]} scopes
 */
export function countReports(scopes) {
  return sum(scopes.flatMap(({ reports }) => Object.values(reports)));
}

/**
 * Return the loss of all reports of a scope, in nats. The reports have several parameter sets if a later registry has
 * changed p or q of a metric for life, or no longer lists the segment of the device. The permanent response is the same
 * under all of them.
 * @param {Device} device
 * @param {Scope} scope
 */
function computeScopeLoss({ params }, { reports }) {
  return epsilonReports(Object.entries(reports).map(([fingerprint, n]) => [params[fingerprint], n]));
}
