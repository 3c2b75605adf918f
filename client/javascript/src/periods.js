// Days, intervals and epochs of a time. All are in UTC, and a time is a number of seconds since 1970.
//
// - An interval is the period with at most one report of a metric: a day, a week from Monday, or "epoch".
// - An epoch is the period with one cohort and one permanent response: a month, a quarter, a year, or "life".
// - With `interval = "epoch"` a metric has one report in an epoch, about the events of one day. The calendar
//   functions therefore treat its interval as a day.
//
// Days are texts such as 2026-11-30, which sort like the days. Epochs have the names 2026-11, 2026-Q4, 2026 and
// the empty text for life.

/** @typedef {import("../index.js").Clock} Clock */
/** @typedef {import("../index.js").Interval} Interval */
/** @typedef {import("../index.js").Epoch} Epoch */

/** Seconds of a day. UTC has no leap seconds in the clocks of programs. */
export const DAY = 86_400;
/** Seconds of a week. */
export const WEEK = 7 * DAY;

const LATEST = Date.UTC(9999, 0, 1) / 1000; // later years have five digits, and their days would not sort
const FIRST_MONDAY = 4 * DAY; // seconds from the start of 1970, which began on a Thursday
/** @type {Record<Interval, number>} */
export const INTERVAL_SECONDS = { day: DAY, week: WEEK, epoch: DAY };
/** @type {Record<string, number>} */
const EPOCH_MONTHS = { year: 12, quarter: 3, month: 1 };

/**
 * Return a clock that stays between the years 1970 and 9999. A clock that returns no number, or a time before
 * 1970, reads as 1970.
 * @param {Clock} [clock] the system's clock by default
 * @returns {Clock}
 */
export const boundClock = (clock = () => Date.now() / 1000) =>
  () => Math.min(Math.max(clock() || 0, 0), LATEST);

/**
 * Return the day of a time, as 2026-11-30.
 * @param {number} now
 */
export function dayOf(now) {
  return new Date(now * 1000).toISOString().slice(0, 10);
}

/**
 * Return the time at which a day is over.
 * @param {string} day
 */
export function findDayEnd(day) {
  return Date.parse(day) / 1000 + DAY; // Date.parse reads a date without a time as UTC
}

/**
 * Return the calendar year of a time.
 * @param {number} now
 */
export function yearOf(now) {
  return new Date(now * 1000).getUTCFullYear();
}

/**
 * Return the end and the length, in seconds, of the interval that contains a time. The end may lie after the
 * end of the epoch; callers that know the epoch limit it.
 * @param {Interval} interval
 * @param {number} now
 */
export function findInterval(interval, now) {
  const seconds = INTERVAL_SECONDS[interval];
  const offset = interval === "week" ? FIRST_MONDAY : 0;
  return { ends: Math.floor((now - offset) / seconds) * seconds + seconds + offset, seconds };
}

/**
 * Return whether a stored interval begins more than its own length ahead. Time cannot have passed in this way:
 * the clock was wrong when the interval was stored, or is wrong now.
 * @param {{ ends: number, seconds: number }} interval
 * @param {number} now
 */
export function isFarAhead({ ends, seconds }, now) {
  return ends > now + 2 * seconds;
}

/**
 * Return the name of the epoch that contains a day.
 *
 *     nameEpoch("quarter", "2026-11-30")   "2026-Q4"
 *     nameEpoch("life", "2026-11-30")      ""
 * @param {Epoch} epoch
 * @param {string} day
 */
export function nameEpoch(epoch, day) {
  if (epoch === "life") return "";
  if (epoch === "quarter") return `${day.slice(0, 5)}Q${Math.ceil(Number(day.slice(5, 7)) / 3)}`;
  return day.slice(0, epoch === "year" ? 4 : 7);
}

/**
 * Return the names of all epochs that contain a day, one for each length of epoch.
 * @param {string} day
 */
export function nameEpochs(day) {
  return Object.keys(EPOCH_MONTHS).map((epoch) => nameEpoch(/** @type {Epoch} */ (epoch), day)).concat("");
}

/**
 * Return the first and the last day of the epoch that contains a day. For life both are far away.
 * @param {Epoch} epoch
 * @param {string} day
 */
export function findEpochDays(epoch, day) {
  if (epoch === "life") return ["0001-01-01", "9999-12-31"];
  const months = EPOCH_MONTHS[epoch];
  const [year, month] = day.split("-").map(Number);
  const firstMonth = Math.floor((month - 1) / months) * months; // from 0
  const dayAt = (/** @type {number} */ monthIndex, date = 1) => dayOf(Date.UTC(year, monthIndex, date) / 1000);
  return [dayAt(firstMonth), dayAt(firstMonth + months, 0)]; // day 0 of a month is the last one of the month before
}
