// What a device remembers, in plain records that a store keeps, and the end of an identity.

import { own } from "./records.js";
import { reservedByYear } from "./reservation.js";

/** @typedef {import("../documents.js").Device} Device */

/** A store holds what no version of this client wrote. */
export class Damaged extends Error {}

/** The version of these records; a store of another one is left alone. */
export const VERSION = 2;

const MOST_PAGES = 50;

/**
 * Return the records of a new identity; what was reserved before stays.
 * @param {string} [mark]
 * @param {Device} [earlier]
 * @returns {Device}
 */
export function newDevice(mark, earlier) {
  return {
    v: VERSION,
    mark,
    reserved: earlier?.reserved ?? [],
    scopes: [],
    params: {},
    held: {},
    done: {},
    counters: {},
    lost: earlier?.lost,
    lostIsOver: earlier?.lostIsOver,
    sending: { failures: 0, asked: 0, pause: 0 },
    stopped: {},
  };
}

/**
 * Return what outlives an identity: the nats reserved by year; nothing if there are none.
 * @param {Device | undefined} device
 * @returns {Device | undefined}
 */
export function remainder(device) {
  if (!device) return undefined;
  const { lost, ...rest } = device;
  const years = Object.entries(reservedByYear(rest));
  if (!years.length && lost === undefined) return undefined;
  /** @type {Device["reserved"]} */
  const reserved = years.map(([year, nats]) => [Number(year), "", "", nats]);
  return { ...newDevice(undefined, device), reserved };
}

/**
 * Return whether an event of a page is in the store: the next pages may bring it again, and the same
 * one after a store that answered late.
 * @param {Device} device
 * @param {{ page: string, seq: number }} event
 */
export function isDone({ done }, { page, seq }) {
  return seq <= (own(done, page) ?? -1);
}

/**
 * Note that an event is in the store, and those before it; the pages of long ago are forgotten.
 * @param {Device} device
 * @param {{ page: string, seq: number }} event
 */
export function markDone(device, { page, seq }) {
  const { [page]: _, ...others } = device.done;
  device.done = Object.fromEntries([...Object.entries(others), [page, seq]].slice(-MOST_PAGES));
}

/**
 * Add to a counter.
 * @param {Device} device
 * @param {string} name
 * @param {number} [n]
 */
export function count(device, name, n = 1) {
  device.counters[name] = (device.counters[name] ?? 0) + n;
}
