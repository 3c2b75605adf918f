// Withdrawal of consent: the erasure of a store, and the check that nothing remains.

import { bounded, yearOf } from "./calendar.js";
import { PATIENCE, within } from "./deadline.js";
import { DeferredEvents } from "./deferred_events.js";
import { Damaged, VERSION, newDevice, remainder } from "./state.js";
import { tabsOf } from "./tabs.js";

/** @typedef {import("../documents.js").Documents} Documents */

/** Names of all documents, the identity first. */
export const ALL = /** @type {(keyof Documents)[]} */ (["identity", "device", "spool", "log"]);

/**
 * Erase a store after the uploads of all tabs have ended, and check that nothing remains.
 * @param {import("../index.js").Store} store
 * @param {import("../index.js").Clock} [clock]
 */
export async function erase(store, clock) {
  const tabs = tabsOf(store.channel, () => {});
  const deferred = new DeferredEvents(store);
  const lost = { ...newDevice(), lost: yearOf(bounded(clock)()) };
  tabs.notify();
  deferred.clear();
  const eraseDocuments = () => store.update(ALL, keepRemainder, { strict: true });
  // A damaged store has no remainder that can be read, so the year's reservations are lost.
  const eraseAnyhow = () => eraseDocuments().catch(() => store.clear({ device: lost }));
  const erasing = async () => {
    const isQuiet = !(await remaining(store)).length || (await tabs.afterOthers(eraseAnyhow));
    return isQuiet ? [] : ["an upload under way"];
  };
  // A failure is no answer by itself: `remaining` says what is left.
  const underWay = await within(erasing(), 2 * PATIENCE).catch(() => []);
  const left = [...(await remaining(store)), ...deferred.keys(), ...underWay];
  tabs.close();
  return { done: !left.length, secretGone: !left.includes("identity"), left };
}

/**
 * Return whether the identity and the device belong together and have the version of this client.
 * @param {Documents} documents
 */
export function isSound({ identity, device }) {
  return device?.v === VERSION && (!identity || identity.secretId === device.secretId);
}

/** @param {Documents} documents */
function keepRemainder(documents) {
  const { device: before } = documents;
  // A later version may have a remainder that this client cannot read.
  if (before && before.v > VERSION) throw new Damaged();
  const device = remainder(before);
  Object.assign(documents, { identity: undefined, spool: undefined, log: undefined, device });
}

/**
 * Return the names of the documents that an erasure must not leave; all names if the store cannot be read.
 * @param {import("../index.js").Store} store
 * @returns {Promise<string[]>}
 */
async function remaining(store) {
  try {
    const documents = await within(store.read(ALL), PATIENCE / 2);
    const isLeft = (/** @type {keyof Documents} */ name) =>
      name === "device" ? documents.device?.secretId : documents[name];
    return ALL.filter(isLeft);
  } catch {
    return [...ALL];
  }
}
