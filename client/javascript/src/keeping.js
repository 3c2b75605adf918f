// What a store changes for a recorded value: latch, choice and spool, all of it or nothing.

import { dayOf, yearOf } from "./calendar.js";
import { count, isDone, markDone } from "./device.js";
import { keepReserved } from "./reservation.js";
import { offer, release, settleReport } from "./reservoir.js";
import { answer, draw, termsOf } from "./scopes.js";
import { trim } from "./spool.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Recorded} Recorded */
/** @typedef {import("../documents.js").Scope} Scope */
/** @typedef {import("../documents.js").Spool} Spool */
/** @typedef {import("./making.js").Made} Made */

/**
 * A value with what its metrics were prepared for.
 * @typedef {object} Ready
 * @property {Recorded} event
 * @property {Metric[]} metrics none, if it is silent by now
 * @property {Made[]} answers one for each metric
 */

/**
 * Keep values in the order of their recording; return how many are done: all of them, or those before
 * the first one that needs its permanent response after all.
 * @param {{ device: Device, spool: Spool }} documents
 * @param {Ready[]} values
 * @param {{ coins: import("../index.js").Coins, limits: import("../index.js").Limits }} settings
 * @param {(device: Device, metrics: Metric[], now: number) => boolean} speaks
 */
export function keepAll(documents, values, { coins, limits }, speaks) {
  const { device, spool } = documents;
  for (const [i, { event, metrics, answers }] of values.entries()) {
    if (isDone(device, event)) continue;
    if (metrics.length && speaks(device, metrics, event.now)) {
      if (!keep(device, spool, event, metrics, answers, coins)) return i;
    }
    markDone(device, event);
  }
  trim(device, spool, limits);
  return values.length;
}

/**
 * @param {Device} device
 * @param {Spool} spool
 * @param {Recorded} event
 * @param {Metric[]} metrics
 * @param {Made[]} answers
 * @param {import("../index.js").Coins} coins
 */
function keep(device, spool, event, metrics, answers, coins) {
  const { now, isFit } = event;
  release(device, spool, now, coins);
  /** @type {import("./reservoir.js").Offer[]} */
  const offers = [];
  for (const [i, metric] of metrics.entries()) {
    const terms = termsOf(metric, dayOf(now));
    const answered = answer(device, terms, answers[i]);
    if (!answered) return false;
    offers.push({ terms, ...answered });
  }
  if (!isFit) count(device, "unfit");
  const isAtOnce = (/** @type {{ scope: Scope }} */ { scope }) => scope.interval === "none";
  const held = offers.filter((each) => !isAtOnce(each));
  if (!offer(device, held, event, coins)) return true;
  for (const each of offers.filter(isAtOnce)) {
    settleReport(device, spool, each, draw(each.scope, each.params, coins));
  }
  for (const metric of metrics) keepReserved(device, metric, yearOf(now));
  return true;
}
