// The budget of a device: the nats that metrics reserve of a calendar year, before anything is recorded.
//
// The registry has a total, the privacy loss that a device may have in a calendar year. A metric reserves the cost
// of all its scopes that touch the year. (A scope is one metric in one epoch under one permanent response; its cost
// is an upper bound on its loss.) Example: a metric of quarters costs 4 nats a scope, so it reserves 16 nats.
//
// The command that writes the registry refuses metrics that exceed the total. On a device a metric can lack budget
// for two reasons: the host program has set a lower cap, or an earlier registry has reserved budget in the same
// year. The metric is then skipped for the whole year. Nothing that was reserved is ever given back.
//
// So only registry, calendar and cap decide that a metric is skipped, and never a value or an event. If values
// decided, a missing report would reveal something about them.
//
// A reservation is a row of `device.reserved`: [year, metric, scopes, nats]. `scopes` is a text that names the
// epoch length and the permanent fingerprints; an entry of the same metric with another text costs anew.

import { sum } from "./collections.js";
import { computeYearCost } from "./loss.js";
import { acceptedParams } from "./registry.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Registry} Registry */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {[name: string, reserved: number, missing: number]} MetricNeed a metric, its reserved nats, and the nats that it needs beside them */
/** @typedef {{ year: number, life: number }} NatLimits largest nats of a year, and of all years together */

/**
 * Nats by which a sum of costs may exceed a limit. Costs are thousandths, which binary numbers do not contain
 * exactly: three times 0.1 is more than 0.3. A thousandth more would still be noticed.
 */
const ROUNDING = 1e-9;

/**
 * Return the names of the metrics without budget in a year. Metrics that have reserved before come first, then the
 * others in the order of the registry.
 * @param {Device} device
 * @param {Registry} registry
 * @param {NatLimits} limits
 * @param {number} year
 * @returns {Set<string>}
 */
export function metricsWithoutBudget(device, registry, limits, year) {
  const { lost = 0, lostIsOver } = device;
  // The device was lost in the year `lost`, and nobody knows what it had reserved. All metrics are skipped until
  // the clock has passed from the lost year into the next one. A clock that jumps over a year, or back, was wrong
  // before or is wrong now, and does not end the loss.
  const isLossOver = lostIsOver ? year > lost : year === lost + 1;
  if (lost && !isLossOver) return new Set(registry.metrics.keys());
  const inYear = reservedByScopes(device.reserved.filter(([reservedYear]) => reservedYear === year));
  const inAllYears = reservedByScopes(device.reserved);
  const findUnder = (/** @type {number} */ total, /** @type {Map<string, number>} */ reserved) => {
    if (total === Infinity) return [];
    /** @type {MetricNeed[]} */
    const needs = [...registry.metrics.values()].map((metric) => {
      const key = `${metric.name} ${scopesKey(metric)}`;
      const nats = reserved.get(key) ?? 0;
      // A scope for life is the same scope in every year, so an earlier year has paid for it.
      const paid = metric.epoch === "life" ? nats : (inYear.get(key) ?? 0);
      return [metric.name, nats, excess(computeYearCost(metric, year), paid)];
    });
    return namesWithoutRoom(needs, total, reserved);
  };
  return new Set([...findUnder(limits.year, inYear), ...findUnder(limits.life, inAllYears)]);
}

/**
 * Date a loss of the device anew, if the clock was wrong when the loss was dated.
 *
 * - The clock shows the year after the lost one: the lost year has passed, and the loss is over.
 * - The clock shows a still later year: no time can have passed in this way. The clock was wrong when the loss was
 *   dated, such as one that starts in 1970, and the loss moves to the year that the clock shows now.
 * @param {Device} device
 * @param {number} year
 */
export function dateLoss(device, year) {
  const { lost = Infinity } = device;
  if (year === lost + 1) device.lostIsOver = true;
  if (year > lost && !device.lostIsOver) device.lost = year;
}

/**
 * Reserve the cost of a metric for a year. A reservation only grows.
 * @param {Device} device
 * @param {Metric} metric
 * @param {number} year
 */
export function reserveCost(device, metric, year) {
  const row = rowOf(device, metric, year);
  const cost = computeYearCost(metric, year);
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
  return (rowOf(device, metric, year)?.[3] ?? -1) >= computeYearCost(metric, year);
}

/**
 * Return the row of a metric's reservation for a year, undefined if there is none.
 * @param {Device} device
 * @param {Metric} metric
 * @param {number} year
 */
function rowOf(device, metric, year) {
  const key = scopesKey(metric);
  return device.reserved.find(
    ([reservedYear, name, scopes]) => reservedYear === year && name === metric.name && scopes === key,
  );
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
 * Return the nats reserved by metric and scopes. A scope for life is the same scope in every year, so its rows of
 * several years count once.
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
 * @param {MetricNeed[]} needs in the order of the registry
 * @param {number} total
 * @param {Map<string, number>} reserved nats by metric and scopes, also of metrics that the registry has no longer
 */
function namesWithoutRoom(needs, total, reserved) {
  /** @type {Set<string>} */
  const names = new Set();
  const unreserved = total - sum(reserved.values()); // negative if the host program has lowered its cap
  // First the metrics that have reserved before: they continue if their reservations fit. Reservations that are no
  // metric's any more keep their nats.
  let room = unreserved + sum(needs.map(([, nats]) => nats));
  for (const [name, nats] of needs) {
    if (nats <= room + ROUNDING) room -= nats;
    else names.add(name);
  }
  // Then the nats that a metric needs beyond its reservation. A later metric may still fit.
  room = unreserved;
  for (const [name, , missing] of needs) {
    const fits = missing === 0 || missing <= room + ROUNDING;
    if (!fits) names.add(name);
    else if (!names.has(name)) room -= missing;
  }
  return names;
}

/**
 * Return the nats needed beyond the reserved ones. Both may be infinite, and their difference would be NaN.
 * @param {number} needed
 * @param {number} reserved
 */
function excess(needed, reserved) {
  return needed > reserved ? needed - reserved : 0;
}

/**
 * Return a text that is equal for two entries of a metric if their scopes are the same. An entry with other scopes
 * costs the device anew.
 * @param {Metric} metric
 */
function scopesKey(metric) {
  const responses = acceptedParams(metric).map((params) => params.permanentFingerprint);
  return `${metric.epoch} ${responses.join(" ")}`;
}
