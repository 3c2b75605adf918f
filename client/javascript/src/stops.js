// Stops: metrics that the collector asked all devices not to report, for at most 30 days.

import { DAY, afterDay, dayOf } from "./calendar.js";
import { ownEntry } from "./collections.js";

/** @typedef {import("../documents.js").Device} Device */

/** Syntax of a metric or a reason in a response of the collector. */
export const NAME = /^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$/;

const LONGEST = 29 * DAY; // after today, which is the first of the 30 days
const MAX_STOPS = 1000; // in one response; a response with more is not followed

/**
 * Follow the stops of a response. Their content is not trusted: other values are ignored, and a day more
 * than 30 days ahead means 30 days.
 * @param {Device} device
 * @param {unknown} requested
 * @param {string} today
 */
export function followStops(device, requested, today) {
  const entries = Object.entries(requested ?? {});
  /** @type {[string, string][]} */
  const days = entries
    .filter(([name, day]) => NAME.test(name) && typeof day === "string")
    .filter(([, day]) => Date.parse(day) > 0 && dayOf(Date.parse(day) / 1000) === day)
    .map(([name, day]) => [name, day < latest(today) ? day : latest(today)]);
  device.stopped = entries.length > MAX_STOPS ? {} : Object.fromEntries(days);
}

/**
 * Return when the stop of a metric ends, 0 if the metric is not stopped. A stop more than 30 days ahead was
 * stored under a wrong clock and does not count.
 * @param {Device} device
 * @param {string} name
 * @param {number} now
 */
export function stoppedUntil({ stopped }, name, now) {
  const today = dayOf(now);
  const last = ownEntry(stopped, name) ?? "";
  return today <= last && last <= latest(today) ? afterDay(last) : 0;
}

/** @param {string} today */
function latest(today) {
  return dayOf(afterDay(today) + LONGEST);
}
