// The end of consent: what is erased, and the proof of it.

import { bounded, yearOf } from "./calendar.js";
import { PATIENCE, within } from "./deadline.js";
import { Damaged, VERSION, newDevice, remainder } from "./device.js";
import { Handover } from "./handover.js";
import { tabsOf } from "./tabs.js";

/** @typedef {import("../documents.js").Documents} Documents */

/** The names of all documents; the identity comes first. */
export const ALL = /** @type {(keyof Documents)[]} */ (["identity", "device", "spool", "log"]);

/**
 * Erase a store once no tab sends any more, and check that nothing remains.
 * @param {import("../index.js").Store} store
 * @param {import("../index.js").Clock} [clock]
 */
export async function erased(store, clock) {
  const tabs = tabsOf(store.channel, () => {});
  const shelf = new Handover(store);
  const lost = { ...newDevice(), lost: yearOf(bounded(clock)()) };
  tabs.tell();
  shelf.clear();
  const erase = () => store.update(ALL, erasedAll, { strict: true });
  const eraseAnyhow = () => erase().catch(() => store.clear({ device: lost }));
  const erasing = async () => {
    const isQuiet = !(await leftIn(store)).length || (await tabs.whenQuiet(eraseAnyhow));
    return isQuiet ? [] : ["an upload under way"];
  };
  const underWay = await within(erasing(), 2 * PATIENCE).catch(() => []); // what failed is left
  const left = [...(await leftIn(store)), ...shelf.keys(), ...underWay];
  tabs.close();
  return { done: !left.length, secretGone: !left.includes("identity"), left };
}

/**
 * Return whether identity and device belong together and are of this version.
 * @param {Documents} all
 */
export function isSound({ identity, device }) {
  return device?.v === VERSION && (!identity || identity.mark === device.mark);
}

/** @param {Documents} all */
function erasedAll(all) {
  const { device: before } = all;
  if (before && before.v > VERSION) throw new Damaged();
  const device = remainder(before);
  Object.assign(all, { identity: undefined, spool: undefined, log: undefined, device });
}

/**
 * Return the names of the documents that an erasure must not leave; all if none can be read.
 * @param {import("../index.js").Store} store
 * @returns {Promise<string[]>}
 */
async function leftIn(store) {
  try {
    const all = await within(store.read(ALL), PATIENCE / 2);
    return ALL.filter((name) => (name === "device" ? all.device?.mark : all[name]));
  } catch {
    return [...ALL];
  }
}
