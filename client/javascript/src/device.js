// What a device remembers, in plain records that a store keeps, and the end of an identity.

import { sum } from "./numbers.js";
import { reservedByYear } from "./reservation.js";

/** @typedef {import("../index.js").Interval} Interval */
/** @typedef {import("../index.js").Params} Params */

/**
 * One scope: what it has answered for, never a value. `admitted` and `last` are keyed names of
 * bit patterns, `permanent` is the permanent response of the last one.
 * @typedef {object} Scope
 * @property {string} metric
 * @property {string} epoch
 * @property {string} response the permanent fingerprint
 * @property {string} first the first day of its epoch
 * @property {string} end the last one
 * @property {string} params a fingerprint
 * @property {number} cohort
 * @property {string} permanent
 * @property {string[]} admitted
 * @property {string} last
 * @property {boolean} closed
 * @property {number} patterns
 * @property {Interval} interval
 */

/**
 * A permanent response in the ledger, with its reports by parameters, and their loss.
 * @typedef {object} Pattern
 * @property {string} metric
 * @property {string} epoch
 * @property {number} nats
 * @property {Record<string, number>} reports by fingerprint
 */

/**
 * A metric's open interval; without `report` it has had its one.
 * @typedef {object} Held
 * @property {number} ends
 * @property {number} seconds
 * @property {number} events
 * @property {import("./scopes.js").Prepared} [report]
 */

/**
 * @typedef {object} Device
 * @property {number} v
 * @property {string} [mark] the random name of the identity that this belongs to
 * @property {[number, string, string, number][]} reserved year, metric, scopes, nats
 * @property {Scope[]} scopes
 * @property {Record<string, Pattern>} patterns
 * @property {Record<string, Params>} params by fingerprint
 * @property {Record<string, Held>} held
 * @property {Record<string, number>} counters
 * @property {number} carried nats of earlier identities
 * @property {number} [lost] the last year of which it is not known what was reserved
 * @property {{ failures: number, asked: number, pause: number }} sending
 * @property {Record<string, string>} stopped the last day of silence by metric
 */

/**
 * @typedef {{ mark: string, secret: CryptoKey | string }} IdentityRecord
 * @typedef {{ metric: string, params: string, cohort: number, bits: string, nats: number, due: number }} Waiting
 * @typedef {{ id: string, body: string, metric: string, nats: number, attempts: number, first: number, claimed: number, backoff: number }} Pending
 * @typedef {{ reports: Waiting[], uploads: Pending[] }} Spool
 * @typedef {import("../index.js").Sent} Sent
 * @typedef {{ identity?: IdentityRecord, device?: Device, spool?: Spool, log?: Sent[] }} Documents
 */

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
    ...(earlier?.lost !== undefined && { lost: earlier.lost }),
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
