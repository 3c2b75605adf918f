// Metrics that the collector has asked everybody to stop reporting, for at most 30 days.

import { DAY, afterDay, dayOf } from "./calendar.js";
import { own } from "./records.js";

/** @typedef {import("../documents.js").Device} Device */

/** What a collector may name: a metric, or a reason. */
export const NAME = /^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$/;

const LONGEST = 29 * DAY; // after the first one
const MOST = 1000;

/**
 * Follow an answer, which may have asked for anything; a day too late means 30 days.
 * @param {Device} device
 * @param {unknown} asked
 * @param {string} today
 */
export function follow(device, asked, today) {
  const entries = Object.entries(asked ?? {});
  /** @type {[string, string][]} */
  const days = entries
    .filter(([name, day]) => NAME.test(name) && typeof day === "string")
    .filter(([, day]) => Date.parse(day) > 0 && dayOf(Date.parse(day) / 1000) === day)
    .map(([name, day]) => [name, day < latest(today) ? day : latest(today)]);
  device.stopped = entries.length > MOST ? {} : Object.fromEntries(days);
}

/**
 * Return the moment when the silence of metrics that are answered together ends, 0 if none of them
 * is silent; a stop beyond 30 days is of a clock that was wrong.
 * @param {Device} device
 * @param {string[]} names
 * @param {number} now
 */
export function silentUntil({ stopped }, names, now) {
  const today = dayOf(now);
  const days = names.map((name) => own(stopped, name) ?? "");
  const valid = days.filter((until) => today <= until && until <= latest(today));
  return Math.max(0, ...valid.map(afterDay));
}

/** @param {string} today */
function latest(today) {
  return dayOf(afterDay(today) + LONGEST);
}
