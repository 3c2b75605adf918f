// Deferred events: recorded events that wait in synchronous storage until a page can store them.
//
// An event is normally stored in IndexedDB some milliseconds after record(). Two kinds of events cannot wait for a
// transaction:
//
// - The page ends first, for example because the event was a click on a link.
// - The metric is durable: its value must be stored when record() returns.
//
// Such events are written as one text into localStorage, which is synchronous. The next page of the origin, or this
// page if it goes on, reads the text, stores the events and removes the text. On Node, files beside the store take
// the place of localStorage.
//
// A text contains recorded values, and localStorage is readable by every script of the origin. The text is therefore
// enciphered under the secret of the device. WebCrypto is asynchronous and a page that ends cannot wait for it, so
// key streams are computed in advance:
//
//     text in storage = events as JSON, padded with spaces to TEXT_BYTES, xor a key stream
//
// Each key stream is used once: two texts under one stream would reveal their difference. All texts have the same
// length, so the length says nothing about the values. A withdrawal of consent removes the texts.

import { encodeUtf8, fromBase64url, toBase64url } from "./bytes.js";
import { expand } from "./secret.js";
import { drawId } from "./wire.js";

/** @typedef {import("../documents.js").RecordedEvent} RecordedEvent */

/**
 * Length of every text in bytes, which has room for about 20 events. With a larger number, a page that ends can defer
 * more events, and every text takes more of the 5 MB of localStorage, also if it has one event.
 */
const TEXT_BYTES = 4096;
const SPACE = 32; // in UTF-8; JSON.parse ignores spaces at the end
/**
 * Number of key streams in memory. A page needs one when it is hidden, and others for events while it ends. With a
 * smaller number, later events of such a page are lost.
 */
const STREAMS = 4;
/** The same with a durable metric. Each of its events needs a key stream until new ones are computed. */
const STREAMS_IF_DURABLE = 32;

/** The deferred events of one device, of this page and of earlier pages. */
export class DeferredEvents {
  /** @type {import("../index.js").PageStorage | undefined} */ #storage;
  #prefix;
  #streams;
  /** @type {{ key: string, stream: Uint8Array }[]} unused key streams, each with the storage key of its text */
  #unused = [];
  /** @type {Map<string, RecordedEvent[]>} events by storage key, of the texts that are not removed yet */
  #deferred = new Map();

  /**
   * @param {import("../index.js").Store} store
   * @param {boolean} [hasDurableMetric]
   */
  constructor({ pageStorage, channel }, hasDurableMetric = false) {
    this.#storage = pageStorage;
    this.#streams = hasDurableMetric ? STREAMS_IF_DURABLE : STREAMS;
    // JSON quotes the name, so the prefix of one device never begins the prefix of another one.
    this.#prefix = `rappor ${JSON.stringify(channel)} `;
  }

  /**
   * Compute key streams in advance, until there are enough.
   * @param {CryptoKey} secret
   */
  async prepare(secret) {
    while (this.#storage && this.#unused.length < this.#streams) {
      const id = drawId();
      this.#unused.push({ key: this.#prefix + id, stream: await deriveKeyStream(secret, id) });
    }
  }

  /**
   * Write the events that are not deferred yet into storage, as many as one text contains.
   * @param {RecordedEvent[]} events in the order of their recording
   * @returns {boolean} whether a key stream was used
   */
  defer(events) {
    const known = new Set([...this.#deferred.values()].flat());
    /** @type {RecordedEvent[]} */
    const fresh = [];
    let text = encodeUtf8(""); // the JSON of `fresh`
    for (const event of events.filter((event) => !known.has(event))) {
      const longer = encodeUtf8(JSON.stringify([...fresh, event]));
      // Stop at the first event that does not fit. The store contains, for each page, the number of its
      // last stored event. An earlier event that is stored after a later one would be taken for a repetition.
      if (longer.length > TEXT_BYTES) break;
      fresh.push(event);
      text = longer;
    }
    const unused = fresh.length && this.#unused.shift();
    if (!unused) return false; // there is nothing to defer, or the page has used up its key streams
    const { key, stream } = unused;
    try {
      this.#storage?.setItem(key, toBase64url(applyStream(text, stream)));
      this.#deferred.set(key, fresh);
    } catch {
      // The origin's quota is used up: the events are lost if the page ends now.
    }
    return true;
  }

  /**
   * Return whether an event is deferred.
   * @param {RecordedEvent} event
   */
  has(event) {
    return [...this.#deferred.values()].some((events) => events.includes(event));
  }

  /**
   * Return the deferred events, those of each page in the order of their recording. Texts that this device did not
   * write, or that are damaged, are removed.
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
    // Only here, after the last await: `removeStored` may run during an await, and would remove texts whose events
    // are not in memory yet.
    this.#deferred = new Map([...this.#deferred, ...texts]);
    return [...this.#deferred.values()].flat().sort((a, b) => a.seq - b.seq);
  }

  /**
   * Remove the texts of which no event is in memory any more: their events are stored, or their metrics refused.
   * @param {RecordedEvent[]} inMemory
   */
  removeStored(inMemory) {
    for (const [key, events] of this.#deferred) {
      if (events.some((event) => inMemory.includes(event))) continue;
      this.#storage?.removeItem(key);
      this.#deferred.delete(key);
    }
  }

  /** Remove all texts of the device. */
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
 * Return a key stream of TEXT_BYTES bytes: AES-CTR under a key that is derived from the secret for this id alone. The
 * counter may start from 0 each time, because no two texts share a key.
 * @param {CryptoKey} secret
 * @param {string} id random name of the text, which is part of its storage key
 */
async function deriveKeyStream(secret, id) {
  const bytes = /** @type {any} */ (await expand(secret, `rappor-client/1/deferred\0${id}`, 16));
  const key = await crypto.subtle.importKey("raw", bytes, "AES-CTR", false, ["encrypt"]);
  const counter = { name: "AES-CTR", counter: new Uint8Array(16), length: 64 };
  return new Uint8Array(await crypto.subtle.encrypt(counter, key, new Uint8Array(TEXT_BYTES)));
}

/**
 * Encipher or decipher a text: the exclusive or of the text, padded with spaces, and a key stream does both.
 * @param {Uint8Array} text
 * @param {Uint8Array} stream
 */
function applyStream(text, stream) {
  return stream.map((byte, i) => byte ^ (i < text.length ? text[i] : SPACE));
}
