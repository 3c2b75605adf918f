// Deferred events: recorded events that a page could not store before it ended, and events of durable metrics
// until they are stored.
//
// Only localStorage can be written synchronously, so a page that ends leaves its events there for the next
// page of the origin. On Node files take its place. The text is enciphered under the secret of the device, so nobody can read a value in
// it. A page that ends cannot wait for a cipher: each text has a key stream of its own, which is computed
// before it is needed and never used twice. All texts have the same length. A withdrawal removes them.

import { base64url, fromBase64url, utf8 } from "./bytes.js";
import { expand } from "./secret.js";
import { newId } from "./wire.js";

/** @typedef {import("../documents.js").RecordedEvent} RecordedEvent */

const TEXT_BYTES = 4096; // of one text, about 20 events
const SPACE = 32;
/** Key streams in memory: a page may record further events after it was hidden and while it ends. */
const STREAMS = 4;
/** The same with a durable metric, of which each event needs a stream until the next ones are computed. */
const STREAMS_IF_BUSY = 32;

/** The deferred events of the pages of one device. */
export class DeferredEvents {
  /** @type {import("../index.js").PageStorage | undefined} */ #storage;
  #prefix;
  #streams;
  /** @type {{ key: string, stream: Uint8Array }[]} */ #ready = [];
  /** @type {Map<string, RecordedEvent[]>} known texts whose events may not be in the store */
  #deferred = new Map();

  /**
   * @param {import("../index.js").Store} store
   * @param {boolean} [isBusy] whether each event of a durable metric needs a key stream
   */
  constructor({ pageStorage, channel }, isBusy = false) {
    this.#storage = pageStorage;
    this.#streams = isBusy ? STREAMS_IF_BUSY : STREAMS;
    // JSON quotes the name, so the prefix of one device never begins the prefix of another one.
    this.#prefix = `rappor ${JSON.stringify(channel)} `;
  }

  /**
   * Compute the next key streams.
   * @param {CryptoKey} secret
   */
  async prepare(secret) {
    while (this.#storage && this.#ready.length < this.#streams) {
      const id = newId();
      this.#ready.push({ key: this.#prefix + id, stream: await keyStream(secret, id) });
    }
  }

  /**
   * Defer the events that are not deferred yet, as many as one text holds.
   * @param {RecordedEvent[]} events
   * @returns {boolean} whether a key stream was used
   */
  defer(events) {
    const known = new Set([...this.#deferred.values()].flat());
    /** @type {RecordedEvent[]} */
    const fresh = [];
    let text = utf8("");
    for (const event of events.filter((event) => !known.has(event))) {
      const longer = utf8(JSON.stringify([...fresh, event]));
      // Stop at the first event that does not fit. The store knows a page's events by the number of the
      // last one, so a later event must not overtake an earlier one.
      if (longer.length > TEXT_BYTES) break;
      fresh.push(event);
      text = longer;
    }
    const ready = fresh.length && this.#ready.shift(); // a stream that is used twice would reveal values
    if (!ready) return false;
    const { key, stream } = ready;
    try {
      this.#storage?.setItem(key, base64url(applyStream(text, stream)));
      this.#deferred.set(key, fresh);
    } catch {
      // The origin's quota is used up: the events are lost if the page ends.
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
   * Return the deferred events of ended pages, each page's in its order. Texts that this device did not
   * write are removed.
   * @param {CryptoKey} secret
   */
  async read(secret) {
    const texts = new Map();
    for (const key of this.keys()) {
      try {
        const text = fromBase64url(/** @type {string} */ (this.#storage?.getItem(key)));
        const stream = await keyStream(secret, key.slice(this.#prefix.length));
        texts.set(key, JSON.parse(new TextDecoder().decode(applyStream(text, stream))));
      } catch {
        this.#storage?.removeItem(key);
      }
    }
    // In one step after the last await: `removeStored` may run meanwhile.
    this.#deferred = new Map([...this.#deferred, ...texts]);
    return [...this.#deferred.values()].flat().sort((a, b) => a.seq - b.seq);
  }

  /**
   * Remove the texts without an event that is still in memory: their events are stored, or refused.
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
    this.#ready = [];
  }

  /** Return the keys of all texts of the device. */
  keys() {
    const storage = this.#storage;
    const keys = Array.from({ length: storage?.length ?? 0 }, (_, i) => storage?.key(i) ?? "");
    return keys.filter((key) => key.startsWith(this.#prefix));
  }
}

/**
 * Return a key stream: AES-CTR under a key that the secret derives for this id alone.
 * @param {CryptoKey} secret
 * @param {string} id
 */
async function keyStream(secret, id) {
  const bytes = /** @type {any} */ (await expand(secret, `rappor-client/1/deferred\0${id}`, 16));
  const key = await crypto.subtle.importKey("raw", bytes, "AES-CTR", false, ["encrypt"]);
  const counter = { name: "AES-CTR", counter: new Uint8Array(16), length: 64 };
  return new Uint8Array(await crypto.subtle.encrypt(counter, key, new Uint8Array(TEXT_BYTES)));
}

/**
 * Encipher a text, padded with spaces, or decipher it: both are the same exclusive or.
 * @param {Uint8Array} text
 * @param {Uint8Array} stream
 */
function applyStream(text, stream) {
  return stream.map((byte, i) => byte ^ (i < text.length ? text[i] : SPACE));
}
