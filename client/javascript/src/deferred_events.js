// Deferred events: recorded events that wait in synchronous storage until a page can store them.
//
// An event is normally stored in IndexedDB some milliseconds after record(). In two cases this is too late:
//
// - The page ends first, for example because the event was a click on a link.
// - The metric is durable: its value must be stored when record() returns.
//
// Such events are written as one text into localStorage, which is synchronous. This page, if it goes on, or the next
// page of the origin stores the events in IndexedDB and removes the text. On Node, files beside the store take the
// place of localStorage.
//
// A text contains recorded values, and localStorage is readable by every script of the origin. The text is therefore
// encrypted under the secret of the device, by a stream cipher. A key stream is TEXT_BYTES pseudorandom bytes that only
// the secret can reproduce:
//
//     text in storage = (events as JSON, padded with spaces to TEXT_BYTES) xor (key stream)
//
// WebCrypto is asynchronous, and a page that ends cannot wait for it. So a page computes some key streams in advance
// and keeps them in memory. Each key stream is used for one text only: the exclusive or of two texts under one key
// stream equals the exclusive or of their events, and reveals much of them. All texts have the same length, so the
// length reveals nothing about the values.
//
// The methods, in the order of their calls:
//
// 1. prepare       compute some key streams while the page is alive
// 2. defer         the page is hidden or ends, or a metric is durable: write one text with the events in memory
// 3. read          the next page decrypts the texts and takes over their events
// 4. removeStored  the events are in IndexedDB: remove their texts
//
// Example: a person clicks on a link, and the page records the click.
//
//     page A   record("click", ...)         the event is in memory
//     page A   the browser hides the page   defer: one text with the event is in localStorage. Page A ends
//     page B   opens the client             read: the event is in the memory of page B
//     page B   stores its events            the event is in IndexedDB, as an event of page A with its number
//     page B   removeStored                 the text is gone
//
// Bad cases:
//
// - Page B ends before removeStored. Page C reads the text again. The event is not stored twice, because the store
//   remembers the number of the last stored event of page A (`isStored` in state.js).
// - Consent is withdrawn. The texts are removed (`clear`).
// - A text is damaged, or an earlier device wrote it under another secret. It is removed when it is read.

import { encodeUtf8, fromBase64url, toBase64url } from "./bytes.js";
import { expand } from "./secret.js";
import { drawId } from "./wire.js";

/** @typedef {import("../documents.js").RecordedEvent} RecordedEvent */

/**
 * Length of every text in bytes, which has room for about 20 events. With a larger number, a page that ends can defer
 * more events, and every text takes more of the 5 MB of localStorage, also if it has one event.
 */
const TEXT_BYTES = 4096;
const SPACE = 32; // byte of a space in UTF-8, with which texts are padded. JSON.parse ignores spaces at the end
/**
 * Number of key streams that a page keeps in memory. Each text uses one. A page writes a text when it becomes hidden,
 * because it may end without a further event of the browser, and another text for each event that is recorded while it
 * is hidden. With a smaller number, the later events of such a page are lost.
 */
const STREAMS = 4;
/**
 * Number of key streams that a page keeps in memory if a metric is durable. Each event of a durable metric is written
 * at once, as a text of its own. With a smaller number, fewer durable events in a row can be stored before record()
 * returns.
 */
const STREAMS_IF_DURABLE = 32;

/** The deferred events of one device, of this page and of earlier pages. */
export class DeferredEvents {
  /** @type {import("../index.js").PageStorage | undefined} */ #storage;
  #prefix; // of the storage keys of all texts of this device
  #streams; // number of unused key streams that `prepare` provides
  /** @type {{ key: string, stream: Uint8Array }[]} unused key streams, each with the storage key of its text */
  #unused = [];
  /** @type {Map<string, RecordedEvent[]>} the events of each text in storage, by the storage key of the text */
  #deferred = new Map();

  /**
   * @param {import("../index.js").Store} store its `pageStorage` contains the texts. Without it nothing is deferred
   * @param {boolean} [hasDurableMetric] whether a metric of the registry is durable
   */
  constructor({ pageStorage, channel }, hasDurableMetric = false) {
    this.#storage = pageStorage;
    this.#streams = hasDurableMetric ? STREAMS_IF_DURABLE : STREAMS;
    // JSON quotes the name. Bad case without quotes: the prefix of the device "a" would be the beginning of the prefix of
    // the device "a b", and the device "a" would remove the texts of the device "a b".
    this.#prefix = `rappor ${JSON.stringify(channel)} `;
  }

  /**
   * Compute key streams until as many are unused as a page needs.
   * @param {CryptoKey} secret
   */
  async prepare(secret) {
    while (this.#storage && this.#unused.length < this.#streams) {
      const id = drawId();
      this.#unused.push({ key: this.#prefix + id, stream: await deriveKeyStream(secret, id) });
    }
  }

  /**
   * Write one text with those events that are in no text yet, as many as fit into TEXT_BYTES.
   * @param {RecordedEvent[]} events the events in memory, in the order of their recording
   * @returns {boolean} whether a key stream was used, also if the storage was full. The caller then calls `prepare`
   */
  defer(events) {
    const alreadyDeferred = new Set([...this.#deferred.values()].flat());
    /** @type {RecordedEvent[]} */
    const fresh = [];
    let text = encodeUtf8(""); // the JSON of `fresh`
    for (const event of events.filter((event) => !alreadyDeferred.has(event))) {
      const extended = encodeUtf8(JSON.stringify([...fresh, event]));
      // Stop at the first event that does not fit, and do not try a later, shorter event. The store remembers only the
      // number of the last stored event of each page, and takes an event with a smaller number for a repetition.
      // Example: event 7 does not fit, and event 8 is deferred in its place. When the next page has stored event 8,
      // event 7 could not be stored any more.
      if (extended.length > TEXT_BYTES) break;
      fresh.push(event);
      text = extended;
    }
    const next = fresh.length && this.#unused.shift();
    if (!next) return false; // there is nothing to defer, or the page has used up its key streams
    const { key, stream } = next;
    try {
      this.#storage?.setItem(key, toBase64url(applyStream(text, stream)));
      this.#deferred.set(key, fresh);
    } catch {
      // `setItem` raises if the quota of the origin is used up. The events stay in memory, and are lost if the page
      // ends before they are in IndexedDB.
    }
    return true;
  }

  /**
   * Return whether an event is in a text, so that it survives the end of the page.
   * @param {RecordedEvent} event
   */
  has(event) {
    return [...this.#deferred.values()].some((events) => events.includes(event));
  }

  /**
   * Return the deferred events. The events of each page are in the order of their recording. Remove the texts that
   * cannot be decrypted: they are damaged, or an earlier device of this origin wrote them under another secret.
   * @param {CryptoKey} secret
   */
  async read(secret) {
    const texts = new Map();
    for (const key of this.keys()) {
      try {
        const text = fromBase64url(/** @type {string} */ (this.#storage?.getItem(key)));
        const stream = await deriveKeyStream(secret, key.slice(this.#prefix.length));
        texts.set(key, JSON.parse(new TextDecoder().decode(applyStream(text, stream))));
      } catch {
        this.#storage?.removeItem(key);
      }
    }
    // The texts are added only here, after the last await. The page may call `removeStored` during an await. It would
    // take the events of an added text for stored ones, because they are not in memory yet, and would remove the text.
    this.#deferred = new Map([...this.#deferred, ...texts]);
    return [...this.#deferred.values()].flat().sort((a, b) => a.seq - b.seq);
  }

  /**
   * Remove the texts of which no event is in memory any more: their events are stored, or their metrics are refused.
   * @param {RecordedEvent[]} inMemory all events that are not stored yet
   */
  removeStored(inMemory) {
    for (const [key, events] of this.#deferred) {
      if (events.some((event) => inMemory.includes(event))) continue;
      this.#storage?.removeItem(key);
      this.#deferred.delete(key);
    }
  }

  /** Remove all texts of the device and forget the key streams, because consent is withdrawn. */
  clear() {
    for (const key of this.keys()) this.#storage?.removeItem(key);
    this.#deferred.clear();
    this.#unused = [];
  }

  /** Return the storage keys of all texts of the device. */
  keys() {
    const storage = this.#storage;
    const keys = Array.from({ length: storage?.length ?? 0 }, (_, i) => storage?.key(i) ?? "");
    return keys.filter((key) => key.startsWith(this.#prefix));
  }
}

/**
 * Return a key stream of TEXT_BYTES bytes: AES-CTR under a key that is derived from the secret and the id of a text.
 * The counter may start from 0 each time, because each text has an id and so a key of its own.
 * @param {CryptoKey} secret
 * @param {string} id random name of the text, the end of its storage key
 */
async function deriveKeyStream(secret, id) {
  const bytes = /** @type {any} */ (await expand(secret, `rappor-client/1/deferred\0${id}`, 16));
  const key = await crypto.subtle.importKey("raw", bytes, "AES-CTR", false, ["encrypt"]);
  const counter = { name: "AES-CTR", counter: new Uint8Array(16), length: 64 };
  return new Uint8Array(await crypto.subtle.encrypt(counter, key, new Uint8Array(TEXT_BYTES)));
}

/**
 * Encrypt or decrypt a text by the exclusive or with a key stream. A text that is shorter than the key stream is padded
 * with spaces.
 * @param {Uint8Array} text
 * @param {Uint8Array} stream
 */
function applyStream(text, stream) {
  return stream.map((byte, i) => byte ^ (i < text.length ? text[i] : SPACE));
}
