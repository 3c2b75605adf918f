// One change of the store for recorded values: memoization, the choice of the interval and the spool
// change together, or not at all.

import { admit, release, smallestTag } from "./admission.js";
import { dayOf, yearOf } from "./calendar.js";
import { reserveCost } from "./reservation.js";
import { rulesOn, scopeOfNextReport } from "./scopes.js";
import { trim } from "./spool.js";
import { count, isStored, markStored } from "./state.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").RecordedEvent} RecordedEvent */
/** @typedef {import("../documents.js").Spool} Spool */
/** @typedef {import("./prepared.js").Prepared} Prepared */

/**
 * A recorded event, and its value as it was prepared. Without `admissible` the metric was skipped since.
 * @typedef {object} ReadyEvent
 * @property {RecordedEvent} event
 * @property {{ metric: Metric, value: Prepared }} [admissible]
 */

/**
 * Store events in the order of their recording. Return the number of stored events: all of them, or those
 * before the first event whose scope begins and whose permanent response is not computed yet.
 * @param {{ device: Device, spool: Spool }} documents
 * @param {ReadyEvent[]} events
 * @param {{ coins: import("../index.js").Coins, limits: import("../index.js").QueueLimits }} settings
 * @param {(device: Device, metric: Metric, now: number) => boolean} mayReport
 */
export function storeEvents(documents, events, { coins, limits }, mayReport) {
  const { device, spool } = documents;
  for (const [i, { event, admissible }] of events.entries()) {
    // A store that answered late, or the next page, may bring an event again.
    if (isStored(device, event)) continue;
    if (admissible && mayReport(device, admissible.metric, event.timestamp)) {
      const { metric, value } = admissible;
      if (!storeEvent(device, spool, event, metric, value, coins)) return i;
    }
    markStored(device, event);
  }
  trim(device, spool, limits);
  return events.length;
}

/**
 * @param {Device} device
 * @param {Spool} spool
 * @param {RecordedEvent} event
 * @param {Metric} metric
 * @param {Prepared} value
 * @param {import("../index.js").Coins} coins
 */
function storeEvent(device, spool, event, metric, value, coins) {
  const { fits, tag, timestamp } = event;
  release(device, spool, timestamp, coins);
  const smallest = smallestTag(device, metric, timestamp);
  if (smallest !== undefined && tag < smallest) {
    const rules = rulesOn(metric, dayOf(timestamp));
    const next = scopeOfNextReport(device, rules, value);
    if (!next) return false;
    admit(device, { rules, ...next }, event, coins);
  }
  if (!fits) count(device, "unfit");
  // Also for an event that is not chosen: a reservation must not depend on the tags.
  if (smallest !== undefined) reserveCost(device, metric, yearOf(timestamp));
  return true;
}
