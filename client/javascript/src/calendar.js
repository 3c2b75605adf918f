// Days, intervals and epochs of a timestamp, all in UTC. A timestamp is in seconds since 1970.

/** @typedef {import("../index.js").Clock} Clock */
/** @typedef {import("../index.js").Interval} Interval */
/** @typedef {import("../index.js").Epoch} Epoch */

export const DAY = 86_400;
export const WEEK = 7 * DAY;

const LAST = Date.UTC(9999, 0, 1) / 1000; // later days have five digits of the year
const MONDAY = 4 * DAY; // 1970 began on a Thursday
/** @type {Record<Interval, number>} seconds of an interval; an epoch has one day with a report */
const SECONDS = { day: DAY, week: WEEK, epoch: DAY };
/** @type {Record<string, number>} */
const MONTHS = { year: 12, quarter: 3, month: 1 };

/**
 * Return a clock that stays between the years 1970 and 9999. NaN reads as 1970.
 * @param {Clock} [clock] the system's unless given
 * @returns {Clock}
 */
export const bounded = (clock = () => Date.now() / 1000) =>
  () => Math.min(Math.max(clock() || 0, 0), LAST);

/**
 * Return the day of a timestamp, as 2026-11-30.
 * @param {number} now
 */
export function dayOf(now) {
  return new Date(now * 1000).toISOString().slice(0, 10);
}

/**
 * Return the end of a day.
 * @param {string} day
 */
export function afterDay(day) {
  return Date.parse(day) / 1000 + DAY;
}

/**
 * Return the year of a timestamp.
 * @param {number} now
 */
export function yearOf(now) {
  return new Date(now * 1000).getUTCFullYear();
}

/**
 * Return the end and the length of the day or week (from Monday) that contains a timestamp.
 * @param {Interval} interval
 * @param {number} now
 */
export function intervalAt(interval, now) {
  const seconds = SECONDS[interval];
  const offset = interval === "week" ? MONDAY : 0;
  return { ends: Math.floor((now - offset) / seconds) * seconds + seconds + offset, seconds };
}

/**
 * Return whether an interval begins so far ahead that the clock must have been wrong.
 * @param {{ ends: number, seconds: number }} interval
 * @param {number} now
 */
export function isFarAhead({ ends, seconds }, now) {
  return ends > now + 2 * seconds;
}

/**
 * Return the epoch that a day belongs to; the empty text for life.
 * @param {Epoch} epoch
 * @param {string} day
 */
export function epochAt(epoch, day) {
  if (epoch === "life") return "";
  if (epoch === "quarter") return `${day.slice(0, 5)}Q${Math.ceil(Number(day.slice(5, 7)) / 3)}`;
  return day.slice(0, epoch === "year" ? 4 : 7);
}

/**
 * Return the names of all epochs that a day belongs to.
 * @param {string} day
 */
export function epochsAt(day) {
  return Object.keys(MONTHS).map((epoch) => epochAt(/** @type {Epoch} */ (epoch), day)).concat("");
}

/**
 * Return the first and the last day of the epoch that contains a day.
 * @param {Epoch} epoch
 * @param {string} day
 */
export function epochDays(epoch, day) {
  if (epoch === "life") return ["0001-01-01", "9999-12-31"];
  const months = MONTHS[epoch];
  const [year, month] = day.split("-").map(Number);
  const first = Math.floor((month - 1) / months) * months;
  const on = (/** @type {number} */ at, date = 1) => dayOf(Date.UTC(year, at, date) / 1000);
  return [on(first), on(first + months, 0)];
}
