// Withdrawal of consent: the erasure of a store, and the check that nothing remains.
//
// A store has four documents:
//
//     document     content
//     identity     the secret, from which the device derives its permanent noise
//     device       the state of the device: the metrics that it has reported (scopes), the part of the yearly budget
//                  that each of them uses (reserved nats), and the reports whose interval is not over (pending reports)
//     spool        reports that wait until they are sent
//     log          sent uploads
//
// The steps of a withdrawal:
//
// 1. The other tabs get a notice. They forget the secret and abort their requests.
// 2. The deferred events in localStorage are removed (deferred_events.js).
// 3. The four documents are removed in one transaction, as soon as no other tab sends. The transaction writes a new
//    document `device`. It contains only the sum of the reserved nats of each calendar year. Without the sums, a person
//    who consents again would get the budget of the year twice (state.js).
// 4. The store is read again. The result lists what this check has found. It never assumes that a step has succeeded.
//
// Bad cases:
//
//     case                                      what happens
//     another tab does not stop sending         the erasure waits for it for some seconds (tabs.js) and goes on. The
//                                               result contains "an upload under way"
//     a document is damaged, or of a later      the reserved nats cannot be read or written. The store is cleared, and
//     version of the client, or the documents   the present year counts as lost: the device skips all metrics until the
//     cannot be changed, as on a full disk      year is over
//     the store does not respond                the result contains the names of all documents, after five seconds

import { STORE_PATIENCE, withDeadline } from "./deadline.js";
import { DeferredEvents } from "./deferred_events.js";
import { boundClock, yearOf } from "./periods.js";
import { DamagedStoreError, VERSION, createDevice, createRemainder } from "./state.js";
import { connectTabs } from "./tabs.js";

/** @typedef {import("../documents.js").Documents} Documents */

/** Names of all documents. The identity must be first: CHANGING_DOCUMENTS in client.js is the list of the others. */
export const ALL = /** @type {(keyof Documents)[]} */ (["identity", "device", "spool", "log"]);

/**
 * Erase a store after the uploads of all tabs have ended, and check what remains. The call returns within five
 * seconds, also if the store does not respond. STORE_PATIENCE is two seconds (deadline.js): the erasure may take four
 * seconds, and the check one.
 * @param {import("../index.js").Store} store
 * @param {import("../index.js").Clock} [clock]
 * @returns {Promise<import("../index.js").Withdrawal>}
 */
export async function eraseStore(store, clock) {
  // The empty function ignores notices of other tabs: this call sends a notice, and has no secret to forget.
  const tabs = connectTabs(store.channel, () => {});
  const deferred = new DeferredEvents(store);
  // The document `device` for the case that the reserved nats cannot be read: the present year is lost. `boundClock`
  // bounds the time to the years 1970 to 9999: with any other time, `yearOf` would raise, and nothing would be erased.
  const now = boundClock(clock)();
  const deviceWithLostYear = { ...createDevice(), lost: yearOf(now) };
  // A notice without the name of a metric says that consent is withdrawn. The other tabs forget their secret.
  tabs.notify();
  deferred.clear();
  // `strict` waits until the change is on the disk. Otherwise a power failure could bring the secret back.
  const eraseDocuments = () => store.update(ALL, keepReservedNats, { strict: true });
  const eraseAlsoDamaged = () => eraseDocuments().catch(() => store.clear({ device: deviceWithLostYear }));
  const eraseUnlessEmpty = async () => {
    // `Client.open` without consent comes here on every page. The erasure would write, and so create a database in an
    // empty store. An empty store is therefore left alone, so that a page without consent leaves no trace.
    const before = await findRemaining(store);
    if (!before.length) return [];
    const hasEnded = await tabs.afterOthers(eraseAlsoDamaged);
    return hasEnded ? [] : ["an upload under way"]; // another tab has not stopped sending in time
  };
  // A failure or a deadline of the erasure is ignored here: the check below reads what has remained.
  const underWay = await withDeadline(eraseUnlessEmpty(), 2 * STORE_PATIENCE).catch(() => []);
  const left = [...(await findRemaining(store)), ...deferred.keys(), ...underWay];
  tabs.close();
  return { done: !left.length, secretGone: !left.includes("identity"), left };
}

/**
 * Return whether the document `device` has the version of this client, and belongs to the identity if there is one.
 * With the scopes of another secret, the client would draw a second permanent response in a scope that already has one.
 * @param {Documents} documents
 */
export function isConsistent({ identity, device }) {
  return device?.v === VERSION && (!identity || identity.secretId === device.secretId);
}

/**
 * Remove all documents, and write a new document `device` with the reserved nats of each year, without an identity.
 * @param {Documents} documents
 */
function keepReservedNats(documents) {
  const { device: before } = documents;
  // A later version may have reservations in a form that this client cannot read. The error makes the caller clear the
  // store and write a lost year.
  if (before && before.v > VERSION) throw new DamagedStoreError();
  const device = createRemainder(before);
  Object.assign(documents, { identity: undefined, spool: undefined, log: undefined, device });
}

/**
 * Return the names of the documents that remain in a store and must be erased. A document `device` without a `secretId`
 * contains only the reserved nats, and may stay. Return all names if the store cannot be read.
 * @param {import("../index.js").Store} store
 * @returns {Promise<string[]>}
 */
async function findRemaining(store) {
  try {
    const documents = await withDeadline(store.read(ALL), STORE_PATIENCE / 2);
    const isLeft = (/** @type {keyof Documents} */ name) =>
      name === "device" ? documents.device?.secretId : documents[name];
    return ALL.filter(isLeft);
  } catch {
    return [...ALL];
  }
}
