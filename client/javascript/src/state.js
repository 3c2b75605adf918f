// The state of a device: its record in the store, event counters, and the part that outlives an identity.
//
// The identity is the secret and its random name, `secretId`. The device record has the `secretId` of the identity
// that it belongs to. A withdrawal of consent removes the identity. One record remains: the nats that the device has
// reserved by calendar year. Without this record, a person who withdraws and consents again would get the budget of
// the year a second time.

import { getOwnEntry } from "./collections.js";
import { WEEK, yearOf } from "./periods.js";
import { sumByYear } from "./reservation.js";

/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Documents} Documents */
/** @typedef {import("../documents.js").Spool} Spool */

/** The store contains a document that this client did not write, or only some of the documents. */
export class DamagedStoreError extends Error {}

/** Version of the records. A client does not change a store of another version. */
export const VERSION = 1;

/**
 * Number of pages whose last stored event is remembered. A page may leave an event in the storage of the browser for
 * the next page, and the event may then be read twice. It is recognized as stored until 50 later pages have stored
 * events. The device record grows with this number.
 */
const MAX_PAGES = 50;

/**
 * Return a new device record, without `secretId` for a store without identity. It keeps the nats that an earlier
 * identity has reserved.
 * @param {string} [secretId]
 * @param {Partial<Device>} [earlier] record of an earlier identity
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
 * The function is for a store without identity and without device record. If the store has no other documents, it is
 * new. A spool or a log shows that a device record was lost, with the nats that were reserved. All metrics are then
 * skipped until the lost year is over. The lost year is the year of the clock, or the latest year in the documents if
 * that is later. In this case the clock is wrong now, and budget of the later year was used.
 * @param {Documents} documents
 * @param {number} now
 */
export function findLostYear({ spool, log }, now) {
  if (!spool && !log?.length) return undefined;
  /** @type {Spool} */
  const { reports, uploads, last } = { reports: [], uploads: [], last: {}, ...spool };
  const times = [
    ...reports.map(({ sendAfter }) => sendAfter - WEEK), // sendAfter is at most a week after the interval's end
    ...uploads.map(({ first }) => first),
    ...Object.values(last).map(([time]) => time),
  ];
  const years = (log ?? []).map(({ day }) => Number(day.slice(0, 4)));
  return Math.max(yearOf(now), ...times.map(yearOf), ...years);
}

/**
 * Return the record that remains after an identity is removed: the nats reserved by year, without names of metrics.
 * Return undefined if nothing was reserved.
 * @param {Device | undefined} device
 * @returns {Device | undefined}
 */
export function createRemainder(device) {
  if (!device) return undefined;
  const { lost, ...withoutLoss } = device; // a lost year stays in `lost`, and is no sum of nats
  const years = Object.entries(sumByYear(withoutLoss));
  if (!years.length && lost === undefined) return undefined;
  /** @type {Device["reserved"]} */
  const reserved = years.map(([year, nats]) => [Number(year), "", "", nats]);
  return { ...createDevice(undefined, device), reserved };
}

/**
 * Return whether an event of a page has been stored before.
 * @param {Device} device
 * @param {{ page: string, seq: number }} event
 */
export function isStored({ storedEvents }, { page, seq }) {
  return seq <= (getOwnEntry(storedEvents, page) ?? -1);
}

/**
 * Remember that an event of a page, and all events before it, are stored. The oldest pages are forgotten.
 * @param {Device} device
 * @param {{ page: string, seq: number }} event
 */
export function markStored(device, { page, seq }) {
  const { [page]: _, ...others } = device.storedEvents;
  const entries = [...Object.entries(others), [page, seq]]; // the page becomes the newest one
  device.storedEvents = Object.fromEntries(entries.slice(-MAX_PAGES));
}

/**
 * Add to an event counter, which `eventCounts` returns.
 * @param {Device} device
 * @param {string} name such as "recorded", "accepted" or "dropped_full"
 * @param {number} [n]
 */
export function addCount(device, name, n = 1) {
  device.counters[name] = (device.counters[name] ?? 0) + n;
}
