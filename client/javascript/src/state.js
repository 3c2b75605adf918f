// The state of a device: the document `device` of its store (type `Device` in documents.d.ts).
//
// The state contains everything that bounds the privacy loss: scopes, pending reports and reserved nats. It also has
// the event counters. The identity is another document: the secret and its random name, `secretId`. The state has the
// `secretId` of the identity that it belongs to.
//
// The life of a state:
//
//     a client opens an empty store        `createDevice`: an empty state, and a new identity
//     events are stored, reports leave     scopes, reservations and counters grow
//     the person withdraws consent         `createRemainder`: the identity and the state are removed. Only the nats
//                                          reserved by calendar year remain, without an identity
//     the person consents again            `createDevice` with these nats, and another identity
//
// Without the remaining nats, a person who withdraws consent and gives it again would get the budget of the year twice,
// and could reveal twice as much as the registry promises.

import { getOwnEntry } from "./collections.js";
import { WEEK, yearOf } from "./periods.js";
import { sumByYear } from "./reservation.js";

/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Documents} Documents */
/** @typedef {import("../documents.js").Spool} Spool */

/** The store contains a document that no client has written in this form, or only some of the documents. */
export class DamagedStoreError extends Error {}

/** Version of the documents. A client does not change a store of another version. */
export const VERSION = 1;

/**
 * Number of pages for which the state remembers the number of the last stored event. An event may come to the store
 * twice, for example if a page has stored it, and has left it in localStorage for the next page as well
 * (deferred_events.js). It is recognized until 50 later pages have stored events. The state grows with this number.
 */
const MAX_PAGES = 50;

/**
 * Return an empty state with the nats that an earlier identity has reserved, and its lost year. The head of
 * reservation.js explains `lost` and `lostIsOver`.
 * @param {string} [secretId] name of the identity; undefined for the state that remains after a withdrawal
 * @param {Partial<Device>} [earlier] state of an earlier identity
 * @returns {Device}
 */
export function createDevice(secretId, earlier) {
  return {
    v: VERSION,
    secretId,
    reserved: earlier?.reserved ?? [],
    scopes: [],
    params: {},
    pending: {},
    storedEvents: {},
    counters: {},
    lost: earlier?.lost,
    lostIsOver: earlier?.lostIsOver,
    sending: { failures: 0, waitUntil: 0, pauseUntil: 0 },
    stopped: {},
  };
}

/**
 * Return the year whose reservations are lost, undefined if nothing is lost.
 *
 * The function is called for a store without an identity and without a state. If the store has no other documents, it
 * is new. A spool or a log shows that there was a state, which was lost with the nats that were reserved. All metrics
 * are then skipped until the lost year is over (reservation.js).
 *
 * The lost year is the year of the clock, or the latest year in the documents if it is later. In the second case the
 * clock is wrong now, and reports have used the budget of the later year.
 * @param {Documents} documents
 * @param {number} now
 */
export function findLostYear({ spool, log }, now) {
  if (!spool && !log?.length) return undefined;
  /** @type {Spool} */
  const { reports, uploads, last } = { reports: [], uploads: [], last: {}, ...spool };
  const times = [
    // `sendAfter` is at most a week after the end of the report's interval. Without the subtraction, a report of
    // December 31 that leaves on January 1 would make the new year the lost one.
    ...reports.map(({ sendAfter }) => sendAfter - WEEK),
    ...uploads.map(({ first }) => first),
    ...Object.values(last).map(([time]) => time),
  ];
  const years = (log ?? []).map(({ day }) => Number(day.slice(0, 4)));
  return Math.max(yearOf(now), ...times.map(yearOf), ...years);
}

/**
 * Return the state that remains after a withdrawal: the nats reserved by year and the lost year. It has no names of
 * metrics, because the names would reveal which metrics the device has reported. Return undefined if nothing was reserved or lost.
 * @param {Device | undefined} device
 * @returns {Device | undefined}
 */
export function createRemainder(device) {
  if (!device) return undefined;
  // `sumByYear` would return infinity for a lost year. The lost year stays in `lost`, and needs no reservation.
  const { lost, ...withoutLoss } = device;
  const years = Object.entries(sumByYear(withoutLoss));
  if (!years.length && lost === undefined) return undefined;
  /** @type {Device["reserved"]} */
  const reserved = years.map(([year, nats]) => [Number(year), "", "", nats]);
  return { ...createDevice(undefined, device), reserved };
}

/**
 * Return whether an event has been stored before. The events of a page are stored in the order of their numbers, so the
 * number of the last stored event decides.
 * @param {Device} device
 * @param {{ page: string, seq: number }} event
 */
export function isStored({ storedEvents }, { page, seq }) {
  return seq <= (getOwnEntry(storedEvents, page) ?? -1);
}

/**
 * Remember the number of the last stored event of a page. The pages that have stored nothing for the longest time are
 * forgotten.
 * @param {Device} device
 * @param {{ page: string, seq: number }} event
 */
export function markStored(device, { page, seq }) {
  const { [page]: _, ...others } = device.storedEvents;
  const entries = [...Object.entries(others), [page, seq]]; // the page becomes the newest one
  device.storedEvents = Object.fromEntries(entries.slice(-MAX_PAGES));
}

/**
 * Add a number of events to an event counter. `Client.eventCounts` returns the counters.
 * @param {Device} device
 * @param {string} name such as "recorded", "accepted" or "dropped_full"
 * @param {number} [n]
 */
export function addCount(device, name, n = 1) {
  device.counters[name] = (device.counters[name] ?? 0) + n;
}
