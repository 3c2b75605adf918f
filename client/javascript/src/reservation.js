// Reservations: the parts of a year's privacy budget that the metrics of a device may use.
//
// The registry has a total, the privacy loss in nats that a device may have in a calendar year. With its first event of
// the year, a metric reserves the costs of all its scopes of which at least one day is in the year. So a metric never
// runs out of budget in the middle of a year. Example: a metric with `epoch = "quarter"` and a cost of 4 nats has four
// scopes in a year, so it reserves 16 nats.
//
//     scope                   one metric in one epoch under one permanent fingerprint, on one device
//     permanent fingerprint   hash of the parameters that determine the permanent response
//     permanent response      the noisy value that a device draws once for a scope, and repeats in all its reports
//     cost                    upper bound on the privacy loss of all reports of a scope, in nats
//
// The command that writes the registry refuses metrics that together exceed the total. On a device a metric can lack
// budget all the same: the host program has set a lower cap, or an earlier registry or an earlier identity has reserved
// nats of the same year. The metric is then skipped for the whole year. Reserved nats stay reserved until the year is
// over, because reports may have used them.
//
// Example: the registry has a total of 40 nats and the metrics A (16 nats), B (16) and C (8). The host program has
// lowered the total to 24 nats. A fits. B does not fit into the 8 nats that are left, so B is skipped. C fits.
//
// Only registry, calendar, cap and earlier reservations decide that a metric is skipped, and never a value. If values
// decided, a missing report would reveal something about them.
//
// A reservation is a row of `device.reserved`: [year, metric, scopes, nats], such as
// [2026, "engine", "quarter 5d1f...", 16]. The text `scopes` has the length of the epochs and the permanent
// fingerprints. If a change of the registry changes the text, the device draws other permanent responses, so the metric
// needs another reservation. Metric and scopes are empty texts in the rows of an earlier identity (state.js).
//
// If the state of the device was lost, the number of reserved nats is unknown. `device.lost` is then the year of the
// loss. All metrics are skipped until it is over. `device.lostIsOver` is true once the clock has shown the year that
// follows the lost one.

import { sum } from "./collections.js";
import { computeYearCost } from "./loss.js";
import { listAcceptedParams } from "./registry.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Registry} Registry */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {[name: string, reserved: number, missing: number]} MetricNeed name of a metric, its reserved nats, and the nats that it needs beyond them */
/** @typedef {{ year: number, life: number }} NatLimits largest nats of a year, and of all years together */

/**
 * Nats by which a sum of costs may exceed a limit. Costs are multiples of 0.001, which floating-point numbers do not
 * represent exactly: 3 * 0.1 is more than 0.3. The rounding error of a sum of costs is far smaller than this number. A
 * number above 0.001 would hide a real excess.
 */
const ROUNDING = 1e-9;

/**
 * Return the names of the metrics without budget in a year. A metric needs room under two limits: the limit of the year,
 * and the limit of all years together. `findWithoutRoom` has the rules for one limit.
 * @param {Device} device
 * @param {Registry} registry
 * @param {NatLimits} limits
 * @param {number} year
 * @returns {Set<string>}
 */
export function findUnaffordable(device, registry, limits, year) {
  const { lost, lostIsOver } = device;
  if (lost !== undefined) {
    // Before the loss is over, only the year that follows the lost one is free. A still later year means that the clock
    // was wrong when the state was lost, or is wrong now (see `updateLostYear`). After the loss is over, all years
    // after the lost one are free. A clock that is set back into the lost year, or before it, still finds all metrics
    // skipped.
    const isLossOver = lostIsOver ? year > lost : year === lost + 1;
    if (!isLossOver) return new Set(registry.metrics.keys());
  }
  const inYear = sumByScopes(device.reserved.filter(([reservedYear]) => reservedYear === year));
  const inAllYears = sumByScopes(device.reserved);
  const findOverLimit = (/** @type {number} */ total, /** @type {Map<string, number>} */ reserved) => {
    if (total === Infinity) return [];
    /** @type {MetricNeed[]} */
    const needs = [...registry.metrics.values()].map((metric) => {
      const key = `${metric.name} ${identifyScopes(metric)}`;
      const nats = reserved.get(key) ?? 0;
      // A scope for life is the same scope in every year, so the reservation of an earlier year covers this year, too.
      const paid = metric.epoch === "life" ? nats : (inYear.get(key) ?? 0);
      return [metric.name, nats, subtractReserved(computeYearCost(metric, year), paid)];
    });
    return findWithoutRoom(needs, total, reserved);
  };
  return new Set([...findOverLimit(limits.year, inYear), ...findOverLimit(limits.life, inAllYears)]);
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
 * Reserve the cost of a metric for a year. An existing reservation never becomes smaller, because reports may have used
 * all of it.
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
  // -1 without a row. With 0, a metric of cost 0 would count as reserved without a row.
  const reserved = findReservation(device, metric, year)?.[3] ?? -1;
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
 * Return the names of the metrics that do not fit under a limit. In the first round, the metrics that have reserved
 * nats before keep them if they still fit. In the second round, the metrics that need more than they have reserved get
 * the difference (`missing`), in the order of the registry.
 * @param {MetricNeed[]} needs in the order of the registry
 * @param {number} total the limit, in nats
 * @param {Map<string, number>} reserved all reserved nats by metric and scopes, also of metrics that the registry no
 *   longer has
 */
function findWithoutRoom(needs, total, reserved) {
  /** @type {Set<string>} */
  const names = new Set();
  const unreserved = total - sum(reserved.values()); // negative if the host program has lowered its cap
  // Round 1. The room is the limit without the reservations that no metric of `needs` has made: the reservations of
  // earlier registries and of earlier identities, which cannot be undone. (A device gets a new identity when consent is
  // given again after a withdrawal.) A metric does not fit, for example, if the host program has lowered its cap since it reserved.
  let room = unreserved + sum(needs.map(([, nats]) => nats));
  for (const [name, nats] of needs) {
    if (nats <= room + ROUNDING) room -= nats;
    else names.add(name);
  }
  // Round 2. The room is the limit without all reservations, also of the metrics that did not fit in round 1,
  // because reports may have used their nats. After a metric that does not fit, a later and cheaper one may still fit.
  room = unreserved;
  for (const [name, , missing] of needs) {
    const fits = missing === 0 || missing <= room + ROUNDING;
    if (!fits) names.add(name);
    else if (!names.has(name)) room -= missing;
  }
  return names;
}

/**
 * Return the nats that are needed beyond the reserved nats, 0 if the reserved nats suffice. If both are infinite, the
 * result is 0. Their difference would be NaN, which fits under no limit.
 * @param {number} needed
 * @param {number} reserved
 */
function subtractReserved(needed, reserved) {
  return needed > reserved ? needed - reserved : 0;
}

/**
 * Return the text that identifies the scopes of a metric: the length of the epochs and the permanent fingerprints of
 * all parts. Two entries of a metric with equal texts have the same scopes, so one reservation is enough for both.
 * @param {Metric} metric
 */
function identifyScopes(metric) {
  const fingerprints = listAcceptedParams(metric).map((params) => params.permanentFingerprint);
  return `${metric.epoch} ${fingerprints.join(" ")}`;
}
