// Withdrawal of consent: the erasure of a store, and the check that nothing remains.
//
// A store has four documents: the identity (the secret), the device (scopes, reservations, pending reports), the
// spool (queued reports) and the log (sent uploads). The erasure removes all of them in one transaction. One record
// is written anew: the nats reserved by calendar year, without which a new consent would get a fresh budget.
//
// The erasure works in a damaged store, too: it then replaces all documents. Afterwards the store is read again. The
// result contains what this check has found, and never an assumption.

import { PATIENCE, withDeadline } from "./deadline.js";
import { DeferredEvents } from "./deferred_events.js";
import { boundClock, yearOf } from "./periods.js";
import { DamagedStoreError, VERSION, createDevice, createRemainder } from "./state.js";
import { connectTabs } from "./tabs.js";

/** @typedef {import("../documents.js").Documents} Documents */

/** Names of all documents. The identity is the first one, because `client.js` leaves it out of its changes. */
export const ALL = /** @type {(keyof Documents)[]} */ (["identity", "device", "spool", "log"]);

/**
 * Erase a store after the uploads of all tabs have ended, and check what remains. The call returns within five
 * seconds, also if the store does not respond: four for the erasure, and one for the check.
 * @param {import("../index.js").Store} store
 * @param {import("../index.js").Clock} [clock]
 * @returns {Promise<import("../index.js").Withdrawal>}
 */
export async function eraseStore(store, clock) {
  const tabs = connectTabs(store.channel, () => {});
  const deferred = new DeferredEvents(store);
  const recordOfLoss = { ...createDevice(), lost: yearOf(boundClock(clock)()) };
  tabs.notify(); // the clients of other tabs forget the secret and abort their requests
  deferred.clear();
  const eraseDocuments = () => store.update(ALL, keepReservedNats, { strict: true });
  // The reservations in a damaged store cannot be read. The year counts as lost: all metrics are skipped in it.
  const eraseAnyhow = () => eraseDocuments().catch(() => store.clear({ device: recordOfLoss }));
  const eraseUnlessEmpty = async () => {
    // Every page without consent comes here. An empty store is left alone, so such a page creates no database.
    const hasEnded = !(await findRemaining(store)).length || (await tabs.afterOthers(eraseAnyhow));
    return hasEnded ? [] : ["an upload under way"]; // of another tab, which has not ended in time
  };
  // A failure and a deadline are ignored here, because the check reads what has remained.
  const underWay = await withDeadline(eraseUnlessEmpty(), 2 * PATIENCE).catch(() => []);
  const left = [...(await findRemaining(store)), ...deferred.keys(), ...underWay];
  tabs.close();
  return { done: !left.length, secretGone: !left.includes("identity"), left };
}

/**
 * Return whether the identity and the device belong together and have the version of this client.
 * @param {Documents} documents
 */
export function isConsistent({ identity, device }) {
  return device?.v === VERSION && (!identity || identity.secretId === device.secretId);
}

/**
 * Replace all documents by the record that outlives an identity.
 * @param {Documents} documents
 */
function keepReservedNats(documents) {
  const { device: before } = documents;
  // A later version may have reservations that this client cannot read. The caller then writes a lost year.
  if (before && before.v > VERSION) throw new DamagedStoreError();
  const device = createRemainder(before);
  Object.assign(documents, { identity: undefined, spool: undefined, log: undefined, device });
}

/**
 * Return the names of the documents that an erasure must not leave: a device record without an identity may stay.
 * Return all names if the store cannot be read.
 * @param {import("../index.js").Store} store
 * @returns {Promise<string[]>}
 */
async function findRemaining(store) {
  try {
    const documents = await withDeadline(store.read(ALL), PATIENCE / 2);
    const isLeft = (/** @type {keyof Documents} */ name) =>
      name === "device" ? documents.device?.secretId : documents[name];
    return ALL.filter(isLeft);
  } catch {
    return [...ALL];
  }
}
