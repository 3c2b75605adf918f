// Stops: requests of a collector to all devices to skip a metric for some days.
//
// A response to an upload may contain the object `stop`: names of metrics, each with the last day (UTC) of the stop, at
// most 30 days ahead. A device follows the stops of the latest response. It records nothing of a stopped metric, and
// its queued reports of the metric wait until the stop is over.
//
// Example: on November 20 a response contains {"stop": {"editor": "2026-11-30"}}. Until November 30 the device records
// no event of `editor`, and queued reports of `editor` wait. A response on November 25 without `stop` ends the stop at
// once.
//
// A stop can only make a device send less. So a collector cannot use a stop to get more reports from a device, and a
// forged response can stop a metric for 30 days at most.

import { getOwnEntry } from "./collections.js";
import { DAY, findDayEnd, dayOf } from "./periods.js";

/** @typedef {import("../documents.js").Device} Device */

/** Syntax of a metric's name, and of the reason of a refusal, in a response of the collector. */
export const NAME = /^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$/;

/**
 * Longest time from today to the last day of a stop, in seconds: 30 days. With a larger number, a mistake of the
 * collector's operator would last longer.
 */
const MAX_AHEAD_SECONDS = 30 * DAY;
/**
 * Largest number of stops in a response. A response with more stops would fill the store of the device, so all of its
 * stops are ignored.
 */
const MAX_STOPS = 1000;

/**
 * Store the stops of a response. They replace the stops of earlier responses.
 *
 * A response may be wrong or forged. An entry that is not a name with a day is ignored. A last day that is more than
 * 30 days ahead is replaced by the day in 30 days.
 * @param {Device} device
 * @param {unknown} requested last days by metric; undefined if the response has no stops, which ends all stops
 * @param {string} today
 */
export function followStops(device, requested, today) {
  const entries = Object.entries(requested ?? {});
  const latest = findLatestDay(today);
  /** @type {[string, string][]} */
  const days = entries
    .filter(([name, day]) => NAME.test(name) && typeof day === "string")
    // Days are compared as texts, so only the form 2026-12-24 is accepted. Date.parse also reads other forms, such as
    // "24 Dec 2026". Such a text is not equal to the day that `dayOf` writes.
    .filter(([, day]) => Date.parse(day) > 0 && dayOf(Date.parse(day) / 1000) === day)
    .map(([name, day]) => [name, day < latest ? day : latest]);
  device.stopped = entries.length > MAX_STOPS ? {} : Object.fromEntries(days);
}

/**
 * Return the time at which the stop of a metric ends, 0 if the metric is not stopped. A stored day that is more than 30
 * days ahead does not count: the clock was ahead when it was stored.
 * @param {Device} device
 * @param {string} name
 * @param {number} now
 */
export function findStopEnd({ stopped }, name, now) {
  const today = dayOf(now);
  const last = getOwnEntry(stopped, name) ?? "";
  return today <= last && last <= findLatestDay(today) ? findDayEnd(last) : 0;
}

/**
 * Return the latest possible last day of a stop: the day in 30 days. Example: 2026-12-20 if today is 2026-11-20.
 * @param {string} today
 */
function findLatestDay(today) {
  const startOfToday = findDayEnd(today) - DAY;
  return dayOf(startOfToday + MAX_AHEAD_SECONDS);
}
