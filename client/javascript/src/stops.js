// Metrics that the collector has asked everybody to stop reporting, for at most 30 days.

import { DAY, dayOf } from "./calendar.js";
import { own } from "./device.js";

/** @typedef {import("../documents.js").Device} Device */

const LONGEST = 30 * DAY;
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
    .filter(([, day]) => typeof day === "string" && isDay(day))
    .map(([name, day]) => [name, day < latest(today) ? day : latest(today)]);
  device.stopped = entries.length > MOST ? {} : Object.fromEntries(days);
}

/**
 * Tell whether a metric is silent; a stop beyond 30 days is of a clock that was wrong.
 * @param {Device} device
 * @param {string} name
 * @param {string} today
 */
export function isStopped({ stopped }, name, today) {
  const until = own(stopped, name) ?? "";
  return today <= until && until <= latest(today);
}

/** @param {string} today */
function latest(today) {
  return dayOf(Date.parse(today) / 1000 + LONGEST);
}

/** @param {string} text */
function isDay(text) {
  return /^\d{4}-\d\d-\d\d$/.test(text) && Date.parse(text) > 0;
}
