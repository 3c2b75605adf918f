// Stops: requests of a collector that no device report a metric until a day, at most 30 days ahead.
//
// A collector writes stops into its responses, {"metric": "2026-12-24"} with the last day. A device follows the
// stops of the latest response: it records nothing of the metric and keeps its queued reports until the stop is
// over. A stop can only make a device send less, so a forged response can do no worse than silence it for 30 days.

import { getOwnEntry } from "./collections.js";
import { DAY, findDayEnd, dayOf } from "./periods.js";

/** @typedef {import("../documents.js").Device} Device */

/** Syntax of a metric's name, and of the reason of a refusal, in a response of the collector. */
export const NAME = /^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$/;

/** Longest time from the end of today to the end of a stop, in seconds. Today is the first of the 30 days. */
const LONGEST_AFTER_TODAY = 29 * DAY;
/** Largest number of stops in a response. A response with more could fill the store, so all of its stops are ignored. */
const MAX_STOPS = 1000;

/**
 * Follow the stops of a response, in place of those of the response before. Their content is not trusted: an entry
 * of another form is ignored, and a day more than 30 days ahead means 30 days.
 * @param {Device} device
 * @param {unknown} requested days by metric; undefined if the response has no stops, which ends all stops
 * @param {string} today
 */
export function followStops(device, requested, today) {
  const entries = Object.entries(requested ?? {});
  const latest = findLatestDay(today);
  /** @type {[string, string][]} */
  const days = entries
    .filter(([name, day]) => NAME.test(name) && typeof day === "string")
    // Date.parse also reads other forms, such as "24 Dec 2026". Only a day in the form of dayOf sorts as a text.
    .filter(([, day]) => Date.parse(day) > 0 && dayOf(Date.parse(day) / 1000) === day)
    .map(([name, day]) => [name, day < latest ? day : latest]);
  device.stopped = entries.length > MAX_STOPS ? {} : Object.fromEntries(days);
}

/**
 * Return the time at which the stop of a metric ends, 0 if the metric is not stopped. A stop more than 30 days
 * ahead was stored while the clock was wrong, and does not count.
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
 * Return the last day that a stop may have.
 * @param {string} today
 */
function findLatestDay(today) {
  return dayOf(findDayEnd(today) + LONGEST_AFTER_TODAY);
}
