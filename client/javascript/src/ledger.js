// What the device has spent, in nats: a sum over distinct bit patterns, each the loss of its
// reports under its one permanent response. A pattern is named by a keyed hash.

import { count, nats, own } from "./device.js";
import { epsilonReports } from "./loss.js";
import { sum } from "./numbers.js";
import { reservedByYear } from "./reservation.js";

/** @typedef {import("../index.js").Spent} Spent */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Spool} Spool */
/** @typedef {import("../documents.js").Prepared} Prepared */

/**
 * Charge a report and let it wait until it is due.
 * @param {Device} device
 * @param {Spool} spool
 * @param {Prepared} prepared
 * @param {number} [due]
 */
export function chargeAndSpool(device, spool, prepared, due = 0) {
  const { epoch, pattern, ...report } = prepared;
  spool.reports.push({ ...report, nats: charge(device, prepared), due });
  count(device, "recorded");
}

/**
 * Return what was spent, in all and by metric.
 * @param {Device} device
 * @returns {Spent}
 */
export function spentOf(device) {
  /** @type {Spent["metrics"]} */
  const metrics = {};
  for (const { metric, nats: loss, reports } of Object.values(device.patterns)) {
    const all = own(metrics, metric) ?? { nats: 0, patterns: 0, reports: 0 };
    metrics[metric] = {
      nats: all.nats + loss,
      patterns: all.patterns + 1,
      reports: all.reports + total(reports),
    };
  }
  const spent = device.lost === undefined ? nats(device) : Infinity;
  return { nats: spent, carried: device.carried, metrics, reserved: reservedByYear(device) };
}

/**
 * Return how many reports of an epoch have been charged.
 * @param {Device} device
 * @param {string} metric
 * @param {string} epoch
 */
export function nReports(device, metric, epoch) {
  const own = Object.values(device.patterns).filter(
    (each) => each.metric === metric && each.epoch === epoch,
  );
  return sum(own.map(({ reports }) => total(reports)));
}

/**
 * Charge a report and return the nats that it adds.
 * @param {Device} device
 * @param {Prepared} prepared
 */
function charge(device, { metric, epoch, params, pattern }) {
  const charged = (device.patterns[pattern] ??= { metric, epoch, nats: 0, reports: {} });
  charged.reports[params] = (charged.reports[params] ?? 0) + 1;
  const before = charged.nats;
  const entries = Object.entries(charged.reports);
  const loss = epsilonReports(entries.map(([own, n]) => [device.params[own], n]));
  charged.nats = Math.max(before, loss);
  return before < Infinity ? charged.nats - before : 0;
}

/** @param {Record<string, number>} reports */
function total(reports) {
  return sum(Object.values(reports));
}
