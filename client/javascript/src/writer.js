// The writer: the change of the store that recorded events make, inside one transaction.
//
// The choice of an interval, memoized permanent responses, reservations and the spool change together, or not at
// all. For each event, in the order of their recording:
//
// 1. Pending reports of intervals that ended before the event move into the spool.
// 2. If the event has the smallest tag of its interval, its report becomes the pending one.
// 3. The cost of the metric is reserved for the year.
// 4. The event is marked as stored.

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
 * A recorded event, and its metric and prepared value. Without `admissible` the event has no report: the decisions
 * of the secret have shown since that its metric is skipped, or the registry has changed since.
 * @typedef {object} ReadyEvent
 * @property {RecordedEvent} event
 * @property {{ metric: Metric, value: Prepared }} [admissible]
 */

/**
 * Store events in the order of their recording.
 * @param {{ device: Device, spool: Spool }} documents
 * @param {ReadyEvent[]} events
 * @param {{ coins: import("../index.js").Coins, limits: import("../index.js").QueueLimits }} settings
 * @param {(device: Device, metric: Metric, now: number) => boolean} mayReport returns whether a metric has budget
 *   and is not stopped
 * @returns {number} number of stored events: all of them, or those before the first event that begins a scope and
 *   has no permanent response yet
 */
export function storeEvents(documents, events, { coins, limits }, mayReport) {
  const { device, spool } = documents;
  for (const [i, { event, admissible }] of events.entries()) {
    // An event comes again if the store responded after the deadline, or if its page deferred it to this one and
    // could store it all the same.
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
 * Store one event; return false if its value needs a permanent response first.
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
    const next = assignScope(device, rules, value);
    if (!next) return false;
    admitEvent(device, { rules, ...next }, event, coins);
  }
  if (!fits) addCount(device, "unfit");
  // Also for an event that is not chosen: whether a metric is skipped for lack of budget must not depend on the
  // random tags of its events.
  if (smallest !== undefined) reserveCost(device, metric, yearOf(timestamp));
  return true;
}
