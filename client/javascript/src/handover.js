// What a page that ends has recorded and not stored yet waits in the origin's localStorage for the
// next page, which alone is written at once. Nobody reads a value there: it is enciphered under the
// device's secret, each time with a key stream of its own, made before it is needed, because a page
// that ends waits for no cipher. All such texts are of one length. A withdrawal removes them.

import { base64url, fromBase64url, utf8 } from "./bytes.js";
import { expand } from "./secret.js";
import { newId } from "./wire.js";

/** @typedef {import("../documents.js").Recorded} Recorded */

const ROOM = 4096; // bytes of one text
const SPACE = 32;
const STREAMS = 4; // a page may record while it ends, after it was hidden

/** The shelf of one device's pages. */
export class Handover {
  /** @type {import("../index.js").Shelf | undefined} */ #shelf;
  #prefix;
  /** @type {{ key: string, stream: Uint8Array }[]} */ #ready = [];
  /** @type {Map<string, Recorded[]>} what lies there and is not in the store, as far as is known */
  #left = new Map();

  /** @param {import("../index.js").Store} store */
  constructor({ shelf, channel }) {
    this.#shelf = shelf;
    this.#prefix = `rappor ${JSON.stringify(channel)} `; // no other device's begins with it
  }

  /**
   * Make the next key streams.
   * @param {CryptoKey} secret
   */
  async prepare(secret) {
    while (this.#shelf && this.#ready.length < STREAMS) {
      const id = newId();
      this.#ready.push({ key: this.#prefix + id, stream: await streamOf(secret, id) });
    }
  }

  /**
   * Leave events to the next page, as many as there is room for; nothing is left twice.
   * @param {Recorded[]} events
   * @returns {boolean} whether a key stream was used
   */
  leave(events) {
    const left = new Set([...this.#left.values()].flat());
    /** @type {Recorded[]} */
    const fresh = [];
    let text = utf8("");
    for (const event of events.filter((each) => !left.has(each))) {
      const longer = utf8(JSON.stringify([...fresh, event]));
      if (longer.length > ROOM) break; // in their order: what is stored is known by its last event
      fresh.push(event);
      text = longer;
    }
    const ready = fresh.length && this.#ready.shift(); // no stream is used twice
    if (!ready) return false;
    const { key, stream } = ready;
    try {
      this.#shelf?.setItem(key, base64url(enciphered(text, stream)));
      this.#left.set(key, fresh);
    } catch {
      // there is no room
    }
    return true;
  }

  /**
   * Return what pages that ended have left, in its order; what is no text of this device is removed.
   * @param {CryptoKey} secret
   */
  async found(secret) {
    const found = new Map();
    for (const key of this.keys()) {
      try {
        const text = fromBase64url(/** @type {string} */ (this.#shelf?.getItem(key)));
        const stream = await streamOf(secret, key.slice(this.#prefix.length));
        found.set(key, JSON.parse(new TextDecoder().decode(enciphered(text, stream))));
      } catch {
        this.#shelf?.removeItem(key);
      }
    }
    this.#left = new Map([...this.#left, ...found]); // at once, or what is settled meanwhile is removed
    return [...this.#left.values()].flat().sort((a, b) => a.seq - b.seq);
  }

  /**
   * Remove the texts of which nothing waits any more: it is in the store, or was refused.
   * @param {Recorded[]} waiting
   */
  settle(waiting) {
    for (const [key, events] of this.#left) {
      if (events.some((event) => waiting.includes(event))) continue;
      this.#shelf?.removeItem(key);
      this.#left.delete(key);
    }
  }

  /** Remove all of it. */
  clear() {
    for (const key of this.keys()) this.#shelf?.removeItem(key);
    this.#left.clear();
    this.#ready = [];
  }

  /** Return the names of what lies there. */
  keys() {
    const shelf = this.#shelf;
    const names = Array.from({ length: shelf?.length ?? 0 }, (_, i) => shelf?.key(i) ?? "");
    return names.filter((name) => name.startsWith(this.#prefix));
  }
}

/**
 * Return a key stream: AES-CTR under a key that the secret derives for this name alone.
 * @param {CryptoKey} secret
 * @param {string} id
 */
async function streamOf(secret, id) {
  const bytes = /** @type {any} */ (await expand(secret, `rappor-client/1/handover\0${id}`, 16));
  const key = await crypto.subtle.importKey("raw", bytes, "AES-CTR", false, ["encrypt"]);
  const counter = { name: "AES-CTR", counter: new Uint8Array(16), length: 64 };
  return new Uint8Array(await crypto.subtle.encrypt(counter, key, new Uint8Array(ROOM)));
}

/**
 * Return a text, filled with spaces, under a key stream; or what was written under it.
 * @param {Uint8Array} text
 * @param {Uint8Array} stream
 */
function enciphered(text, stream) {
  return stream.map((byte, i) => byte ^ (i < text.length ? text[i] : SPACE));
}
