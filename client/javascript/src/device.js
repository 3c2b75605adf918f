// What a device remembers, in plain records that a store keeps, and the end of an identity.

import { sum } from "./numbers.js";
import { reservedByYear } from "./reservation.js";

/** @typedef {import("../documents.js").Device} Device */

/** A store holds what no version of this client wrote. */
export class Damaged extends Error {
  name = "Damaged";
}

/** The version of these records; a store of another one is left alone. */
export const VERSION = 1;

/**
 * Return the records of a new identity; what was spent and reserved before stays.
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
    patterns: {},
    params: {},
    held: {},
    counters: {},
    carried: earlier?.carried ?? 0,
    lost: earlier?.lost,
    lostIsOver: earlier?.lostIsOver,
    sending: { failures: 0, asked: 0, pause: 0 },
    stopped: {},
  };
}

/**
 * Return what outlives an identity: nats spent, and reserved by year; nothing if there are none.
 * @param {Device | undefined} device
 * @returns {Device | undefined}
 */
export function remainder(device) {
  if (!device) return undefined;
  const { lost, ...rest } = device;
  const carried = nats(device);
  const years = Object.entries(reservedByYear(rest));
  if (!carried && !years.length && lost === undefined) return undefined;
  /** @type {Device["reserved"]} */
  const reserved = years.map(([year, nats]) => [Number(year), "", "", nats]);
  return { ...newDevice(undefined, device), carried, reserved };
}

/**
 * Return the nats spent in all, earlier identities included.
 * @param {Device} device
 */
export function nats(device) {
  return device.carried + sum(Object.values(device.patterns).map((each) => each.nats));
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

/**
 * Return what a record has of its own under a name; a metric may be called "constructor".
 * @template T
 * @param {Record<string, T>} record
 * @param {string} name
 * @returns {T | undefined}
 */
export function own(record, name) {
  return Object.hasOwn(record, name) ? record[name] : undefined;
}
