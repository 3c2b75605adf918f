// At most one report in an interval: a uniform choice among its events, of which each draws a random
// tag, and the smallest is held. Only what is held when the interval ends is admitted to its scope,
// and leaves at a random time of the next one; other events leave no trace. An interval belongs to
// one epoch and ends with it at the latest. A clock that is set back reopens none. A scope never has
// more reports than its price counts on, whatever clocks and registries do.

import { hex } from "./bytes.js";
import { afterDay, dayOf, epochAt, epochsAt, intervalAt, isFarAhead } from "./calendar.js";
import { count } from "./device.js";
import { nReports } from "./ledger.js";
import { ONE } from "./params.js";
import { sort } from "./records.js";
import { answer, draw, inForce, isLatched, remember, termsOf, wasLatched } from "./scopes.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Held} Held */
/** @typedef {import("../documents.js").Scope} Scope */
/** @typedef {import("../documents.js").Spool} Spool */
/** @typedef {import("../documents.js").Prepared} Prepared */
/** @typedef {import("../documents.js").Terms} Terms */
/** @typedef {{ terms: Terms, scope: Scope, params: Params }} Offer what a scope would be after a report */
/** @typedef {{ ends: number, seconds: number, tag: string }} Open an open interval, and its smallest tag */

const NO_TAG = "~"; // it is above all tags
const FAR = 1e12; // with it all moments have as many digits

/**
 * Draw the tag of an event: 64 bits, so that two events share one with probability 2^-64.
 * @param {Coins} coins
 */
export function tagOf(coins) {
  return hex(coins(2), 8);
}

/**
 * Remember what a scope has answered for, and let its report wait.
 * @param {Device} device
 * @param {Spool} spool
 * @param {Pick<Offer, "scope" | "params">} answered
 * @param {Prepared} report
 * @param {number} [due]
 */
export function settleReport(device, spool, { scope }, report, due = 0) {
  const { epoch, pattern, ...waiting } = report;
  remember(device, scope);
  spool.reports.push({ ...waiting, due });
  count(device, "recorded");
}

/**
 * Enter the reports of one event into the choice of the open interval, all of them or none; false if
 * that has had its report. Intervals that are over must have been released. Metrics whose events differ, because an earlier registry had
 * one of them alone, begin anew with this event.
 * @param {Device} device
 * @param {Offer[]} offers
 * @param {{ now: number, tag: string }} event
 * @param {Coins} coins
 */
export function offer(device, offers, { now, tag }, coins) {
  const open = offers.map(({ scope }) => openInterval(device, scope, now));
  if (!open.every((each) => each)) return false;
  const tags = new Set(open.map((each) => each?.tag ?? ""));
  const [held] = tags;
  const isFixed = offers.every(({ scope }) => wasLatched(device, scope));
  if (tags.size === 1 && held !== NO_TAG && (isFixed || tag >= held)) return true;
  for (const [i, { terms, scope, params }] of offers.entries()) {
    const { metric, epoch, permanent, closed } = scope;
    const its = /** @type {Open} */ (open[i]);
    const report = { ...draw(scope, params, coins), permanent, closed };
    device.held[`${metric} ${epoch}`] = { ...its, metric, epoch, terms, tag, report };
  }
  return true;
}

/**
 * Return the smallest tag so far of the open interval of metrics that are answered together: an event
 * with a larger one changes nothing, and none does where the tag is empty, because all scopes have
 * their latch. NO_TAG is for an event that must be looked at, undefined for an interval that is over.
 * @param {Device} device
 * @param {Metric[]} metrics
 * @param {number} now
 * @returns {string | undefined}
 */
export function smallestTag(device, metrics, now) {
  const tags = new Set();
  let isFixed = true;
  for (const metric of metrics) {
    const terms = termsOf(metric, dayOf(now));
    const named = { metric: metric.name, epoch: epochAt(metric.epoch, dayOf(now)) };
    const scope = inForce(device, terms, named)?.scope;
    if (scope?.interval === "none") return NO_TAG; // whatever interval an earlier registry left open
    const open = openInterval(device, scope ?? { ...terms, ...named }, now);
    if (!open) return undefined;
    tags.add(open.tag);
    isFixed &&= Boolean(scope && isLatched(scope));
  }
  if (tags.size > 1 || tags.has(NO_TAG)) return NO_TAG;
  return isFixed ? "" : [...tags][0];
}

/**
 * Settle the held reports of intervals that have ended, or never were.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 * @param {Coins} coins
 */
export function release(device, spool, now, coins) {
  for (const held of sort(Object.values(device.held), order)) {
    const { report, terms, ends, seconds } = held;
    if (!report || !terms || !isDue(held, now)) continue;
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
 * Return whether any held report may go.
 * @param {Device} device
 * @param {number} now
 */
export function hasDue({ held }, now) {
  return Object.values(held).some((each) => each.report && isDue(each, now));
}

/** @param {Held} held */
function order({ metric, ends, epoch }) {
  return `${metric} ${FAR + ends} ${epoch}`;
}

/**
 * Drop what is held, but not the record that the interval was entered.
 * @param {Held} held
 */
export function forget(held) {
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
 * Return the interval that an event falls into, undefined if that has had its report. Once an epoch,
 * the first day with an event counts.
 * @param {Device} device
 * @param {Pick<Scope, "metric" | "epoch" | "interval" | "end" | "most">} scope
 * @param {number} now
 * @returns {Open | undefined}
 */
function openInterval(device, scope, now) {
  const { metric, epoch, interval, end } = scope;
  const days = epochsAt(dayOf(now));
  const isOpenElsewhere = Object.values(device.held).some(
    (each) =>
      each.metric === metric &&
      each.epoch !== epoch &&
      days.includes(each.epoch) &&
      now < each.ends &&
      !isFarAhead(each, now),
  );
  if (isOpenElsewhere) return undefined; // an earlier registry had another epoch
  const before = device.held[`${metric} ${epoch}`];
  const whole = intervalAt(interval, now);
  const ends = Math.min(whole.ends, afterDay(end));
  const fresh = { ...whole, ends, tag: NO_TAG };
  if (!before || now >= before.ends || isFarAhead(before, now)) {
    return isFull(device, scope) ? undefined : fresh;
  }
  if (!before.report) return undefined;
  const isOfFirstDay = interval === "epoch" && ends <= before.ends - before.seconds;
  return isOfFirstDay ? fresh : before;
}

/**
 * Return whether a scope's epoch has had all reports that its price counts on.
 * @param {Device} device
 * @param {Pick<Scope, "metric" | "epoch" | "most">} scope
 */
function isFull({ scopes }, { metric, epoch, most }) {
  return nReports(scopes.filter((each) => each.metric === metric && each.epoch === epoch)) >= most;
}

/**
 * Return whether an interval has ended, or never was.
 * @param {{ ends: number, seconds: number }} held
 * @param {number} now
 */
function isDue(held, now) {
  return now >= held.ends || isFarAhead(held, now);
}
