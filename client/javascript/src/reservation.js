// The budget of a device: the nats that metrics reserve of a calendar year, before anything is recorded.
//
// The registry has a total, the privacy loss that a device may have in a calendar year. A metric reserves the cost
// of all its scopes of which at least one day is in the year. Example: a metric with `epoch = "quarter"` and a cost
// of 4 nats has four scopes in a year, so it reserves 16 nats.
//
//     scope                   one metric in one epoch under one permanent fingerprint, on one device
//     permanent fingerprint   hash of the parameters that determine the permanent response
//     permanent response      the noisy value that a device draws once for a scope, and repeats in all its reports
//     cost                    upper bound on the privacy loss of all reports of a scope, in nats
//
// The command that writes the registry refuses metrics that exceed the total. On a device a metric can lack budget
// for two reasons: the host program has set a lower cap, or an earlier registry has reserved budget in the same
// year. The metric is then skipped for the whole year. Nothing that was reserved is ever given back.
//
// So only registry, calendar and cap decide that a metric is skipped, and never a value or an event. If values
// decided, a missing report would reveal something about them.
//
// A reservation is a row of `device.reserved`: [year, metric, scopes, nats]. `scopes` is a text with the length of
// the epoch and the permanent fingerprints. If a change of the registry changes the text, the device draws other
// permanent responses, so the metric needs another reservation.
//
// If the state of the device was lost, nobody knows what was reserved. `device.lost` is the year of the loss, and
// `device.lostIsOver` is true once the clock has shown the following year. Until then all metrics are skipped.

import { sum } from "./collections.js";
import { computeYearCost } from "./loss.js";
import { listAcceptedParams } from "./registry.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Registry} Registry */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {[name: string, reserved: number, missing: number]} MetricNeed a metric, its reserved nats, and the nats that it needs in addition */
/** @typedef {{ year: number, life: number }} NatLimits largest nats of a year, and of all years together */

/**
 * Nats by which a sum of costs may exceed a limit. Costs are thousandths, which binary numbers do not contain
 * exactly: three times 0.1 is more than 0.3. A tolerance above a thousandth would hide a real excess.
 */
const ROUNDING = 1e-9;

/**
 * Return the names of the metrics without budget in a year. First the metrics that have reserved before keep their
 * reservations. Then missing nats are given out in the order of the registry.
 * @param {Device} device
 * @param {Registry} registry
 * @param {NatLimits} limits
 * @param {number} year
 * @returns {Set<string>}
 */
export function findUnaffordable(device, registry, limits, year) {
  const { lost, lostIsOver } = device;
  if (lost !== undefined) {
    // Only the year that follows the lost one ends the loss. A clock that shows a still later year was wrong when the
    // state was lost, or is wrong now. Once the loss has ended, all later years are in order, and the lost year and
    // the years before are still skipped.
    const isLossOver = lostIsOver ? year > lost : year === lost + 1;
    if (!isLossOver) return new Set(registry.metrics.keys());
  }
  const inYear = sumByScopes(device.reserved.filter(([reservedYear]) => reservedYear === year));
  const inAllYears = sumByScopes(device.reserved);
  const findUnder = (/** @type {number} */ total, /** @type {Map<string, number>} */ reserved) => {
    if (total === Infinity) return [];
    /** @type {MetricNeed[]} */
    const needs = [...registry.metrics.values()].map((metric) => {
      const key = `${metric.name} ${identifyScopes(metric)}`;
      const nats = reserved.get(key) ?? 0;
      // A scope for life is the same scope in every year, so the reservation of an earlier year pays for this year.
      const paid = metric.epoch === "life" ? nats : (inYear.get(key) ?? 0);
      return [metric.name, nats, subtractReserved(computeYearCost(metric, year), paid)];
    });
    return findWithoutRoom(needs, total, reserved);
  };
  return new Set([...findUnder(limits.year, inYear), ...findUnder(limits.life, inAllYears)]);
}

/**
 * Update the lost year of a device after the clock has shown a year.
 *
 * - The clock shows the lost year or an earlier one, or the loss is over: no change.
 * - The clock shows the following year: the loss is over.
 * - The clock shows a still later year: it was wrong when the state was lost, for example because it starts in 1970.
 *   The reservations were made in the year that the clock shows now, so that year becomes the lost year.
 * @param {Device} device
 * @param {number} year
 */
export function updateLostYear(device, year) {
  const { lost = Infinity } = device;
  if (year === lost + 1) device.lostIsOver = true;
  if (year > lost && !device.lostIsOver) device.lost = year;
}

/**
 * Reserve the cost of a metric for a year. A reservation only grows, because reports may have used the larger one.
 * @param {Device} device
 * @param {Metric} metric
 * @param {number} year
 */
export function reserveCost(device, metric, year) {
  const row = findReservation(device, metric, year);
  const cost = computeYearCost(metric, year);
  if (row) row[3] = Math.max(row[3], cost);
  else device.reserved.push([year, metric.name, identifyScopes(metric), cost]);
}

/**
 * Return whether the cost of a metric is reserved for a year.
 * @param {Device} device
 * @param {Metric} metric
 * @param {number} year
 */
export function isReserved(device, metric, year) {
  const reserved = findReservation(device, metric, year)?.[3] ?? -1; // below every cost: the cost 0 needs a row, too
  return reserved >= computeYearCost(metric, year);
}

/**
 * Return the row of a metric's reservation for a year, undefined if there is none.
 * @param {Device} device
 * @param {Metric} metric
 * @param {number} year
 */
function findReservation(device, metric, year) {
  const key = identifyScopes(metric);
  return device.reserved.find(
    ([reservedYear, name, scopes]) => reservedYear === year && name === metric.name && scopes === key,
  );
}

/**
 * Return the nats reserved so far by calendar year, infinity for a year whose reservations were lost.
 * @param {Device} device
 * @returns {Record<number, number>}
 */
export function sumByYear(device) {
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
function sumByScopes(rows) {
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
 * Return the names of the metrics that do not fit under a limit.
 * @param {MetricNeed[]} needs in the order of the registry
 * @param {number} total the limit, in nats
 * @param {Map<string, number>} reserved nats by metric and scopes, also of metrics that the registry has no longer
 */
function findWithoutRoom(needs, total, reserved) {
  /** @type {Set<string>} */
  const names = new Set();
  const unreserved = total - sum(reserved.values()); // negative if the host program has lowered its cap
  // Round 1: metrics that have reserved before continue if their reservations fit. They share the nats that nobody
  // else has reserved. Two kinds of reservations cannot be undone: those of other registries, and those of earlier
  // identities. A device gets a new identity (secret) when consent is given again after a withdrawal.
  let room = unreserved + sum(needs.map(([, nats]) => nats));
  for (const [name, nats] of needs) {
    if (nats <= room + ROUNDING) room -= nats;
    else names.add(name);
  }
  // Round 2: metrics that need more than their reservation. All reservations are subtracted, also those of the metrics
  // that did not fit in round 1, because reports may have used their nats. A later metric may still fit.
  room = unreserved;
  for (const [name, , missing] of needs) {
    const fits = missing === 0 || missing <= room + ROUNDING;
    if (!fits) names.add(name);
    else if (!names.has(name)) room -= missing;
  }
  return names;
}

/**
 * Return the nats needed beyond the reserved nats. If both are infinite, nothing more is needed; their difference
 * would be NaN.
 * @param {number} needed
 * @param {number} reserved
 */
function subtractReserved(needed, reserved) {
  return needed > reserved ? needed - reserved : 0;
}

/**
 * Return the text of a reservation's scopes. It is equal for two registry entries of a metric if their scopes are the
 * same.
 * @param {Metric} metric
 */
function identifyScopes(metric) {
  const fingerprints = listAcceptedParams(metric).map((params) => params.permanentFingerprint);
  return `${metric.epoch} ${fingerprints.join(" ")}`;
}
