// The writer: stores recorded events, inside one transaction of the store.
//
// Pending reports, memoized permanent responses, reservations and the spool change in this one transaction, so they
// change together or not at all. If they did not, a page that ends in between could leave a report without its
// reservation, or a scope without its report. For each event, in the order of their recording:
//
// 1. Pending reports of intervals that ended before the event move into the spool (admission.js).
// 2. If the event has the smallest tag of its interval, its report becomes the pending report. (A tag is a random number
//    that each event draws, so every event of the interval has the same chance.)
// 3. The cost of the metric is reserved for the year (reservation.js).
// 4. The number of the event is stored, so that the event is not stored twice (state.js).
//
// A transaction cannot wait for WebCrypto. An event that needs a permanent response, because it begins a scope,
// therefore ends the transaction before this event. The client computes the permanent response and calls `storeEvents`
// again:
//
//     storeEvents([a, b, c])    a is stored, b begins a scope: returns 1
//     addPermanent(b)           the permanent response of b, outside of a transaction (value_preparer.js)
//     storeEvents([b, c])       returns 2

import { admitEvent, queueEndedReports, findSmallestTag } from "./admission.js";
import { dayOf, yearOf } from "./periods.js";
import { reserveCost } from "./reservation.js";
import { findRules, assignScope } from "./scopes.js";
import { trimSpool } from "./spool.js";
import { addCount, isStored, markStored } from "./state.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").RecordedEvent} RecordedEvent */
/** @typedef {import("../documents.js").Spool} Spool */
/** @typedef {import("./value_preparer.js").Prepared} Prepared */

/**
 * A recorded event, with its metric and its prepared value. Without `admissible` the event takes no part and is only
 * marked as stored. There are two cases: a coin that is derived from the secret excludes the device or the day
 * (`findSkipReason` in value_preparer.js), or an earlier page recorded the event under another parameter set.
 * @typedef {object} ReadyEvent
 * @property {RecordedEvent} event
 * @property {{ metric: Metric, value: Prepared }} [admissible]
 */

/**
 * Store events in the order of their recording.
 * @param {{ device: Device, spool: Spool }} documents
 * @param {ReadyEvent[]} events
 * @param {{ coins: import("../index.js").Coins, limits: import("../index.js").QueueLimits }} settings
 * @param {(device: Device, metric: Metric, now: number) => boolean} mayReport returns whether a metric has budget, is
 *   not stopped, and is not refused
 * @returns {number} number of stored events: all of them, or those before the first event that needs a permanent
 *   response
 */
export function storeEvents(documents, events, { coins, limits }, mayReport) {
  const { device, spool } = documents;
  for (const [i, { event, admissible }] of events.entries()) {
    // An event comes a second time if an earlier transaction was committed after the deadline, so that the client took
    // it for a failure, or if an earlier page has both deferred and stored the event.
    if (isStored(device, event)) continue;
    if (admissible && mayReport(device, admissible.metric, event.timestamp)) {
      const { metric, value } = admissible;
      if (!storeEvent(device, spool, event, metric, value, coins)) return i;
    }
    markStored(device, event);
  }
  trimSpool(device, spool, limits);
  return events.length;
}

/**
 * Store one event. Return false, and store nothing of the event, if its value needs a permanent response first. A value
 * that does not fit, such as a text outside of all categories, is counted as "unfit" and reported all the same.
 * @param {Device} device
 * @param {Spool} spool
 * @param {RecordedEvent} event
 * @param {Metric} metric
 * @param {Prepared} value
 * @param {import("../index.js").Coins} coins
 */
function storeEvent(device, spool, event, metric, value, coins) {
  const { fits, tag, timestamp } = event;
  queueEndedReports(device, spool, timestamp, coins);
  const smallest = findSmallestTag(device, metric, timestamp);
  if (smallest !== undefined && tag < smallest) {
    const rules = findRules(metric, dayOf(timestamp));
    const assigned = assignScope(device, rules, value);
    if (!assigned) return false;
    admitEvent(device, { rules, ...assigned }, event, coins);
  }
  if (!fits) addCount(device, "unfit");
  // The cost is reserved also for an event that is not chosen. Otherwise the random tags would decide which metric
  // reserves first, and so which other metric is skipped for lack of budget. It is not reserved if the event takes no
  // part in an interval.
  if (smallest !== undefined) reserveCost(device, metric, yearOf(timestamp));
  return true;
}
