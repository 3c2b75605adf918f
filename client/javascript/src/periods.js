// Days, intervals and epochs of a time. All are in UTC, and a time is a number of seconds since 1970.
//
// - An interval is the period with at most one report of a metric: a day, a week from Monday, or "epoch".
// - An epoch is the period with one cohort and one permanent response: a month, a quarter, a year, or "life".
// - With `interval = "epoch"` a metric has one report in an epoch, about the events of a single day, which
//   value_preparer.js chooses. So the interval of such a metric is a day in this module (INTERVAL_SECONDS).
//
// Days are texts such as 2026-11-30, so that the order of texts is the order of days. Epochs have names such as
// 2026-11, 2026-Q4 and 2026. The name of life is the empty text.
//
// Example: the time 2026-11-30 12:00, a Monday.
//
//     dayOf             "2026-11-30"
//     findInterval      of "day" until 2026-12-01 00:00, of "week" until 2026-12-07 00:00
//     nameEpoch         of "month" "2026-11", of "quarter" "2026-Q4", of "life" ""
//     findEpochDays     of "quarter" from 2026-10-01 to 2026-12-31

/** @typedef {import("../index.js").Clock} Clock */
/** @typedef {import("../index.js").Interval} Interval */
/** @typedef {import("../index.js").Epoch} Epoch */

/** Seconds of a day. The clocks of programs have no leap seconds, so every day of UTC has the same length. */
export const DAY = 86_400;
/** Seconds of a week. */
export const WEEK = 7 * DAY;

/** Latest time of a clock. Later years have five digits, and their days would not sort as texts. */
const LATEST = Date.UTC(9999, 0, 1) / 1000;
const FIRST_MONDAY = 4 * DAY; // time of Monday, January 5, 1970: weeks begin a multiple of seven days after it
/**
 * Length of an interval in seconds, by the setting `interval` of a metric.
 * @type {Record<Interval, number>}
 */
export const INTERVAL_SECONDS = { day: DAY, week: WEEK, epoch: DAY };
/**
 * Length of an epoch in months. An epoch for life has none.
 * @type {Record<string, number>}
 */
const EPOCH_MONTHS = { year: 12, quarter: 3, month: 1 };

/**
 * Return a clock whose times are between 1970 and 9999. If the given clock returns no number, or a time before 1970,
 * the result returns the beginning of 1970. A time outside of these years would raise in the functions of this module.
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
 * Return the end of a day: the time at which the next day begins.
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
 * Return the end and the length, in seconds, of the interval that contains a time. A week may end after the end of the
 * epoch. A caller to whom this matters must shorten it.
 * @param {Interval} interval
 * @param {number} now
 */
export function findInterval(interval, now) {
  const seconds = INTERVAL_SECONDS[interval];
  const offset = interval === "week" ? FIRST_MONDAY : 0;
  return { ends: Math.floor((now - offset) / seconds) * seconds + seconds + offset, seconds };
}

/**
 * Return whether a stored interval begins more than its own length after the present time.
 *
 * An interval is stored while it is open, so it begins in the past if the clock is right. If it is far ahead, the clock
 * was ahead when the interval was stored, or is behind now. A smaller correction of the clock does not count, for
 * example back over midnight. The stored interval then stays the open one, so that no interval gets a second report.
 *
 *     stored interval: the day 2026-12-02      the clock shows 2026-12-01 09:00    false: begins within a day
 *     stored interval: the day 2026-12-02      the clock shows 2026-11-30 09:00    true
 * @param {{ ends: number, seconds: number }} interval
 * @param {number} now
 */
export function isFarAhead({ ends, seconds }, now) {
  return ends > now + 2 * seconds; // the interval begins at ends - seconds
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
 * Return the first and the last day of the epoch that contains a day. The epoch for life contains all days.
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
