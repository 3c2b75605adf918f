// The budget of a device, reserved for a calendar year before anything is recorded.
//
// Nothing that was reserved is ever given back. Only registry, calendar and the host's own cap decide
// that a metric is skipped, never a value, an event or a value of another metric.

import { sum } from "./collections.js";
import { yearCost } from "./loss.js";
import { acceptedParams } from "./registry.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Registry} Registry */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {[name: string, reserved: number, missing: number]} Row a metric, its reserved nats, and those it needs beside them */
/** @typedef {{ year: number, life: number }} NatLimits the nats of a year, and of all years together */

const ROUNDING = 1e-9; // costs are thousandths of a nat; their sums in binary are off by far less

/**
 * Return the names of the metrics without budget in a year. Metrics with a reservation come first, then
 * the others in the order of the registry.
 * @param {Device} device
 * @param {Registry} registry
 * @param {NatLimits} limits
 * @param {number} year
 * @returns {Set<string>}
 */
export function metricsWithoutBudget(device, registry, limits, year) {
  const { lost = 0, lostIsOver } = device;
  // The reservations of the lost year are unknown. A clock that jumps past the next year, or back, was
  // wrong before or is wrong now, so only the next year ends the loss, and all later ones once it was seen.
  const isLossOver = lostIsOver ? year > lost : year === lost + 1;
  if (lost && !isLossOver) return new Set(registry.metrics.keys());
  const inYear = reservedByScopes(device.reserved.filter(([of]) => of === year));
  const withoutBudget = (/** @type {Map<string, number>} */ reserved, /** @type {number} */ total) => {
    if (total === Infinity) return [];
    /** @type {Row[]} */
    const rows = [...registry.metrics.values()].map((metric) => {
      const key = `${metric.name} ${scopesKey(metric)}`;
      const own = reserved.get(key) ?? 0;
      const before = metric.epoch === "life" ? own : (inYear.get(key) ?? 0);
      return [metric.name, own, excess(yearCost(metric, year), before)];
    });
    return namesWithoutRoom(rows, total, reserved);
  };
  const inAll = reservedByScopes(device.reserved);
  return new Set([...withoutBudget(inYear, limits.year), ...withoutBudget(inAll, limits.life)]);
}

/**
 * Move a loss of the state to the year that the clock shows, unless the clock reaches that year by the
 * passing of the lost one. A clock that jumps over a year was wrong when the loss was dated, for example
 * a clock that starts in 1970.
 * @param {Device} device
 * @param {number} year
 */
export function dateLoss(device, year) {
  const { lost = Infinity } = device;
  if (year === lost + 1) device.lostIsOver = true;
  if (year > lost && !device.lostIsOver) device.lost = year;
}

/**
 * Reserve the cost of a metric for a year.
 * @param {Device} device
 * @param {Metric} metric
 * @param {number} year
 */
export function reserveCost(device, metric, year) {
  const row = rowOf(device, metric, year);
  const cost = yearCost(metric, year);
  if (row) row[3] = Math.max(row[3], cost);
  else device.reserved.push([year, metric.name, scopesKey(metric), cost]);
}

/**
 * Return whether the cost of a metric is reserved for a year.
 * @param {Device} device
 * @param {Metric} metric
 * @param {number} year
 */
export function isReserved(device, metric, year) {
  return (rowOf(device, metric, year)?.[3] ?? -1) >= yearCost(metric, year);
}

/**
 * @param {Device} device
 * @param {Metric} metric
 * @param {number} year
 */
function rowOf(device, metric, year) {
  const scopes = scopesKey(metric);
  const isOwn = (/** @type {Device["reserved"][number]} */ [of, name, own]) =>
    of === year && name === metric.name && own === scopes;
  return device.reserved.find(isOwn);
}

/**
 * Return the nats reserved so far by calendar year, infinity for a year whose reservations were lost.
 * @param {Device} device
 * @returns {Record<number, number>}
 */
export function reservedByYear(device) {
  /** @type {Record<number, number>} */
  const years = {};
  for (const [year, , , nats] of device.reserved) years[year] = (years[year] ?? 0) + nats;
  if (device.lost !== undefined) years[device.lost] = Infinity;
  return years;
}

/**
 * Return the nats reserved by metric and scopes. A scope for life is the same scope in every year.
 * @param {Device["reserved"]} rows
 */
function reservedByScopes(rows) {
  /** @type {Map<string, number>} */
  const reserved = new Map();
  for (const [, name, scopes, nats] of rows) {
    const key = `${name} ${scopes}`;
    const before = reserved.get(key) ?? 0;
    reserved.set(key, scopes.startsWith("life ") ? Math.max(before, nats) : before + nats);
  }
  return reserved;
}

/**
 * Return the names of the metrics for which a total has no room.
 * @param {Row[]} rows
 * @param {number} total
 * @param {Map<string, number>} reserved
 */
function namesWithoutRoom(rows, total, reserved) {
  /** @type {Set<string>} */
  const names = new Set();
  const free = total - sum(reserved.values());
  // First the metrics that have reserved before: they go on if what they reserved fits.
  let room = free + sum(rows.map(([, own]) => own));
  for (const [name, own] of rows) {
    if (own <= room + ROUNDING) room -= own;
    else names.add(name);
  }
  // Then the nats that a metric needs beyond its reservation, in the order of the registry.
  room = free;
  for (const [name, , missing] of rows) {
    const fits = missing === 0 || missing <= room + ROUNDING;
    if (!fits) names.add(name);
    else if (!names.has(name)) room -= missing;
  }
  return names;
}

/**
 * Return the nats needed beyond those reserved. Both may be infinite, so the difference may be NaN.
 * @param {number} needed
 * @param {number} reserved
 */
function excess(needed, reserved) {
  return needed > reserved ? needed - reserved : 0;
}

/**
 * Return the properties on which the scopes of a metric depend, except its name. Other scopes cost anew.
 * @param {Metric} metric
 */
function scopesKey(metric) {
  const responses = acceptedParams(metric).map((params) => params.permanentFingerprint);
  return `${metric.epoch} ${responses.join(" ")}`;
}
