// At most one report in an interval: a uniform choice among its events, as they come (algorithm R
// with a reservoir of one). Only what is held when the interval ends is admitted to its scope and
// charged, and leaves at a random time of the next one; other events leave no trace. An interval
// belongs to one epoch and ends with it at the latest. A clock that is set back reopens none. A
// scope never has more reports than its price counts on, whatever clocks and registries do.

import { DAY, intervalEnd, intervalSeconds } from "./calendar.js";
import { chargeAndSpool, nReports } from "./ledger.js";
import { ONE } from "./params.js";
import { answer, draw, remember } from "./scopes.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Scope} Scope */
/** @typedef {import("../documents.js").Spool} Spool */
/** @typedef {import("../documents.js").Prepared} Prepared */
/** @typedef {import("../documents.js").Terms} Terms */

/**
 * Remember what a scope has answered for, charge its report and let it wait.
 * @param {Device} device
 * @param {Spool} spool
 * @param {{ scope: Scope, params: Params }} answered
 * @param {Prepared} report
 * @param {number} [due]
 */
export function settleReport(device, spool, { scope, params }, report, due) {
  remember(device, scope, params);
  chargeAndSpool(device, spool, report, due);
}

/**
 * Enter a report into the choice of the open interval; false if that has had its report. `scope`
 * is what it would be after this report. Intervals that are over must have been released.
 * @param {Device} device
 * @param {Terms} terms
 * @param {Scope} scope
 * @param {Prepared} report
 * @param {number} now
 * @param {Coins} coins
 */
export function offer(device, terms, scope, report, now, coins) {
  const { metric, epoch, interval, end, permanent, closed } = scope;
  const key = `${metric} ${epoch}`;
  const before = device.held[key];
  const held = { metric, epoch, terms, report: { ...report, permanent, closed } };
  const ends = Math.min(intervalEnd(interval, now), Date.parse(end) / 1000 + DAY);
  const isOver = !before || now >= before.ends || isFarAhead(before, now);
  if (isOver ? isFull(device, scope) : !before.report) return false;
  if (isOver || isOfFirstDay(interval, ends, before)) {
    device.held[key] = { ...held, ends, seconds: intervalSeconds(interval), events: 1 };
  } else {
    before.events += 1;
    if (coins(1)[0] * before.events < ONE) Object.assign(before, held); // probability 1/n
  }
  return true;
}

/**
 * Settle the held reports of intervals that have ended, or never were.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 * @param {Coins} coins
 */
export function release(device, spool, now, coins) {
  const order = (/** @type {string} */ a, /** @type {string} */ b) => (a < b ? -1 : 1);
  const all = Object.values(device.held).sort((a, b) =>
    a.metric === b.metric ? a.ends - b.ends || order(a.epoch, b.epoch) : order(a.metric, b.metric),
  );
  for (const held of all) {
    const { report, terms, ends, seconds } = held;
    if (!report || !terms || (now < ends && !isFarAhead(held, now))) continue;
    const { permanent, closed, ...prepared } = report;
    const entering = { ...prepared, permanent, params: device.params[report.params] };
    const answered = answer(device, terms, entering);
    if (!answered) continue; // it never is: the permanent response is there
    const { scope, params } = answered;
    if (!isFull(device, scope)) {
      scope.closed ||= closed;
      const isSame = scope.last === report.pattern && params.fingerprint === report.params;
      const due = Math.min(ends, now) + (coins(1)[0] / ONE) * seconds;
      settleReport(device, spool, answered, isSame ? prepared : draw(scope, params, coins), due);
    }
    forget(held);
  }
}

/**
 * Drop what is held, but not the record that the interval was entered.
 * @param {import("../documents.js").Held} held
 */
export function forget(held) {
  held.events = 0;
  delete held.report;
}

/**
 * Return the moment when the next held report may go; infinity if none is held.
 * @param {Device} device
 */
export function nextEnd(device) {
  const held = Object.values(device.held).filter(({ report }) => report);
  return Math.min(...held.map(({ ends }) => ends));
}

/**
 * Return whether a scope has had all reports that its price counts on.
 * @param {Device} device
 * @param {Scope} scope
 */
function isFull(device, { metric, epoch, most }) {
  return nReports(device, metric, epoch) >= most;
}

/**
 * Return whether an event is of an earlier day than the one held: once an epoch, the first counts.
 * @param {Scope["interval"]} interval
 * @param {number} dayEnd
 * @param {{ ends: number, seconds: number }} held
 */
function isOfFirstDay(interval, dayEnd, { ends, seconds }) {
  return interval === "epoch" && dayEnd <= ends - seconds;
}

/**
 * Return whether an interval begins so late that the clock must have been wrong.
 * @param {{ ends: number, seconds: number }} held
 * @param {number} now
 */
function isFarAhead({ ends, seconds }, now) {
  return ends > now + 2 * seconds;
}
