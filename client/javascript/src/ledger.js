// What the device has spent, in nats, computed when somebody asks: a sum over distinct bit patterns,
// each the loss of its reports under its one permanent response.

import { epsilonReports } from "./loss.js";
import { sum } from "./numbers.js";
import { reservedByYear } from "./reservation.js";

/** @typedef {import("../index.js").Spent} Spent */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Scope} Scope */

/**
 * Return what was spent, in all and by metric, and what is reserved by year.
 * @param {Device} device
 * @returns {Spent}
 */
export function spentOf(device) {
  const entries = device.scopes.map(({ metric }) => {
    const scopes = device.scopes.filter((each) => each.metric === metric);
    const patterns = scopes.flatMap(({ admitted }) => Object.values(admitted));
    const losses = patterns.map((reports) => lossOf(device, reports));
    return [metric, { nats: sum(losses), patterns: patterns.length, reports: nReports(scopes) }];
  });
  /** @type {Spent["metrics"]} */
  const metrics = Object.fromEntries(entries);
  const nats = device.lost === undefined ? sum(Object.values(metrics).map((each) => each.nats)) : Infinity;
  return { nats, metrics, reserved: reservedByYear(device) };
}

/**
 * Return how many reports scopes have had.
 * @param {Scope[]} scopes
 */
export function nReports(scopes) {
  const patterns = scopes.flatMap(({ admitted }) => Object.values(admitted));
  return sum(patterns.flatMap((reports) => Object.values(reports)));
}

/**
 * @param {Device} device
 * @param {Record<string, number>} reports
 */
function lossOf({ params }, reports) {
  return epsilonReports(Object.entries(reports).map(([own, n]) => [params[own], n]));
}
