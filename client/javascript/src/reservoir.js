// At most one report in an interval: a uniform choice among its events, as they come (algorithm R
// with a reservoir of one). Only what is held when the interval ends is charged, and leaves at a
// random time of the next one. A clock that is set back does not reopen an interval.

import { own } from "./device.js";
import { chargeAndSpool, nReports } from "./ledger.js";
import { ONE } from "./params.js";

/** @typedef {import("../index.js").Coins} Coins */
/** @typedef {import("./device.js").Device} Device */
/** @typedef {import("./device.js").Spool} Spool */
/** @typedef {import("./scopes.js").Prepared} Prepared */

/**
 * Enter a report into the choice of the open interval; false if that has had its report. `most`
 * is how many reports the epoch may have. Intervals that are over must have been released.
 * @param {Device} device
 * @param {Prepared} prepared
 * @param {{ ends: number, seconds: number, now: number, most: number | null, coins: Coins }} interval
 */
export function offer(device, prepared, { ends, seconds, now, most, coins }) {
  const { metric, epoch } = prepared;
  const held = own(device.held, metric);
  if (!held || now >= held.ends || isFarAhead(held, now)) {
    if (most !== null && nReports(device, metric, epoch) >= most) return false;
    device.held[metric] = { ends, seconds, events: 1, report: prepared };
  } else if (!held.report) {
    return false;
  } else {
    held.events += 1;
    if (coins(1)[0] * held.events < ONE) held.report = prepared; // probability 1/n
  }
  return true;
}

/**
 * Charge and spool the held reports of intervals that have ended, or never were.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 * @param {Coins} coins
 */
export function release(device, spool, now, coins) {
  for (const name of Object.keys(device.held).sort()) {
    const held = device.held[name];
    if (held.report && (now >= held.ends || isFarAhead(held, now))) {
      const due = Math.min(held.ends, now) + (coins(1)[0] / ONE) * held.seconds;
      chargeAndSpool(device, spool, held.report, due);
      delete held.report;
    }
  }
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
 * Tell whether an interval begins so late that the clock must have been wrong.
 * @param {{ ends: number, seconds: number }} held
 * @param {number} now
 */
function isFarAhead({ ends, seconds }, now) {
  return ends > now + 2 * seconds;
}
