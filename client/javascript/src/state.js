// The state of a device: plain records in a store, and the part of them that outlives an identity.

import { WEEK, yearOf } from "./calendar.js";
import { ownEntry } from "./collections.js";
import { reservedByYear } from "./reservation.js";

/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Documents} Documents */

/** The store contains a document that this client did not write. */
export class Damaged extends Error {}

/** Version of the records. A store of another version is left alone. */
export const VERSION = 1;

/** Number of pages whose last stored event is remembered. */
const MAX_PAGES = 50;

/**
 * Return the records of a new identity. The nats that an earlier identity reserved stay.
 * @param {string} [secretId]
 * @param {Partial<Device>} [earlier]
 * @returns {Device}
 */
export function newDevice(secretId, earlier) {
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
    sending: { failures: 0, asked: 0, pause: 0 },
    stopped: {},
  };
}

/**
 * Return the year until whose end metrics are skipped, because identity and device are lost while other
 * documents remain; undefined if there are no other documents. A spool or a log that names a later year than
 * the clock shows that the clock is wrong now: the budget of the later year was used, too.
 * @param {Documents} documents
 * @param {number} now
 */
export function lostYear({ spool, log }, now) {
  if (!spool && !log?.length) return undefined;
  /** @type {import("../documents.js").Spool} */
  const { reports, uploads, last } = { reports: [], uploads: [], last: {}, ...spool };
  const times = [
    ...reports.map(({ sendAfter }) => sendAfter - WEEK), // at most a week after the report was finished
    ...uploads.map(({ first }) => first),
    ...Object.values(last).map(([time]) => time),
  ];
  const days = (log ?? []).map(({ day }) => Number(day.slice(0, 4)));
  return Math.max(yearOf(now), ...times.map(yearOf), ...days);
}

/**
 * Return the record that outlives an identity, the nats reserved by year; undefined if there are none.
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
 * Return whether an event of a page has been stored before.
 * @param {Device} device
 * @param {{ page: string, seq: number }} event
 */
export function isStored({ storedEvents }, { page, seq }) {
  return seq <= (ownEntry(storedEvents, page) ?? -1);
}

/**
 * Note that an event of a page and those before it are stored. The oldest pages are forgotten.
 * @param {Device} device
 * @param {{ page: string, seq: number }} event
 */
export function markStored(device, { page, seq }) {
  const { [page]: _, ...others } = device.storedEvents;
  const entries = [...Object.entries(others), [page, seq]];
  device.storedEvents = Object.fromEntries(entries.slice(-MAX_PAGES));
}

/**
 * Add to an event counter.
 * @param {Device} device
 * @param {string} name
 * @param {number} [n]
 */
export function count(device, name, n = 1) {
  device.counters[name] = (device.counters[name] ?? 0) + n;
}
