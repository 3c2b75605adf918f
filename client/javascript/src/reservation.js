// What a device reserves of its budget for a calendar year, before anything happens. Nothing that
// was reserved is ever given back, and silence depends on registry and calendar alone.

import { yearPrice } from "./loss.js";
import { sum } from "./numbers.js";
import { acceptedParams, together } from "./registry.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Registry} Registry */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {[string, number, number]} Row a metric, what it has reserved, what it needs beyond that */
/** @typedef {{ year: number, life: number }} Limits the nats of a year, and of all years together */

const ROUNDING = 1e-9; // prices are thousandths of a nat; their sums in binary are off by far less

/**
 * Return the names of the metrics that do not fit into a year, in the registry's order; those
 * that have reserved before come first.
 * @param {Device} device
 * @param {Registry} registry
 * @param {Limits} limits
 * @param {number} year
 * @returns {Set<string>}
 */
export function silentMetrics(device, registry, limits, year) {
  const { lost = 0, lostIsOver } = device;
  const isLost = lost && !(lostIsOver ? year > lost : year === lost + 1);
  if (isLost) return new Set(registry.metrics.keys());
  const inYear = reserved(device.reserved.filter(([of]) => of === year));
  const silent = (/** @type {Map<string, number>} */ found, /** @type {number} */ total) => {
    if (total === Infinity) return [];
    /** @type {Map<string, Row>} by what is recorded: all of it has room, or nothing */
    const rows = new Map();
    for (const metric of registry.metrics.values()) {
      const key = `${metric.name} ${dependsOn(metric)}`;
      const own = found.get(key) ?? 0;
      const before = metric.epoch === "life" ? own : (inYear.get(key) ?? 0);
      const [asked] = together(registry, metric.name);
      const [, had, extra] = rows.get(asked) ?? [asked, 0, 0];
      rows.set(asked, [asked, had + own, extra + above(yearPrice(metric, year), before)]);
    }
    return withoutRoom([...rows.values()], total, found);
  };
  const inAll = reserved(device.reserved);
  const asked = [...silent(inYear, limits.year), ...silent(inAll, limits.life)];
  return new Set(asked.flatMap((name) => together(registry, name)));
}

/**
 * Move what was lost to the year that the clock shows, unless that only follows on it: a clock that
 * jumps over a year was wrong when the loss was found, as one that starts in 1970.
 * @param {Device} device
 * @param {number} year
 */
export function followClock(device, year) {
  const { lost = Infinity } = device;
  if (year === lost + 1) device.lostIsOver = true;
  if (year > lost && !device.lostIsOver) device.lost = year;
}

/**
 * Write down what a metric reserves of a year in which it has a report.
 * @param {Device} device
 * @param {Metric} metric
 * @param {number} year
 */
export function keepReserved(device, metric, year) {
  const row = rowOf(device, metric, year);
  const price = yearPrice(metric, year);
  if (row) row[3] = Math.max(row[3], price);
  else device.reserved.push([year, metric.name, dependsOn(metric), price]);
}

/**
 * Return whether a metric has reserved what it needs of a year.
 * @param {Device} device
 * @param {Metric} metric
 * @param {number} year
 */
export function hasReserved(device, metric, year) {
  return (rowOf(device, metric, year)?.[3] ?? -1) >= yearPrice(metric, year);
}

/**
 * @param {Device} device
 * @param {Metric} metric
 * @param {number} year
 */
function rowOf(device, metric, year) {
  const scopes = dependsOn(metric);
  const isOwn = (/** @type {Device["reserved"][number]} */ [of, name, own]) =>
    of === year && name === metric.name && own === scopes;
  return device.reserved.find(isOwn);
}

/**
 * Return the nats reserved so far, by calendar year; infinite where that is not known.
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
 * Return the nats reserved by metric and scopes; a scope for life is one in all years.
 * @param {Device["reserved"]} rows
 */
function reserved(rows) {
  /** @type {Map<string, number>} */
  const found = new Map();
  for (const [, name, scopes, nats] of rows) {
    const key = `${name} ${scopes}`;
    const before = found.get(key) ?? 0;
    found.set(key, scopes.startsWith("life ") ? Math.max(before, nats) : before + nats);
  }
  return found;
}

/**
 * Return the metrics that a total has no room for, those first that have reserved before.
 * @param {Row[]} rows
 * @param {number} total
 * @param {Map<string, number>} found
 */
function withoutRoom(rows, total, found) {
  /** @type {Set<string>} */
  const silent = new Set();
  const left = total - sum(found.values());
  let room = left + sum(rows.map(([, had]) => had));
  for (const [name, had] of rows) {
    if (had <= room + ROUNDING) room -= had;
    else silent.add(name);
  }
  room = left;
  for (const [name, , extra] of rows) {
    if (!(extra === 0 || extra <= room + ROUNDING)) silent.add(name);
    else if (!silent.has(name)) room -= extra;
  }
  return silent;
}

/**
 * @param {number} needed
 * @param {number} had
 */
function above(needed, had) {
  return needed > had ? needed - had : 0;
}

/**
 * Return what a metric's scopes depend on beyond its name; other scopes cost anew.
 * @param {Metric} metric
 */
function dependsOn(metric) {
  const parts = acceptedParams(metric).map((params) => params.permanentFingerprint);
  return `${metric.epoch} ${parts.join(" ")}`;
}
