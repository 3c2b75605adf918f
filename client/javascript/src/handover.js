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

/** The shelf of one device's pages. */
export class Handover {
  /** @type {import("../index.js").Shelf | undefined} */ #shelf;
  #prefix;
  /** @type {{ id: string, stream: Uint8Array } | undefined} */ #ready;
  /** @type {Map<string, Recorded[]>} what lies there and is not in the store, as far as is known */
  #left = new Map();

  /** @param {import("../index.js").Store} store */
  constructor({ shelf, channel }) {
    this.#shelf = shelf;
    this.#prefix = `rappor ${channel} `;
  }

  /**
   * Make the next key stream.
   * @param {CryptoKey} secret
   */
  async prepare(secret) {
    const id = newId();
    if (this.#shelf) this.#ready = { id, stream: await streamOf(secret, id) };
  }

  /**
   * Leave events to the next page, as many as there is room for; nothing is left twice.
   * @param {Recorded[]} events
   * @returns {boolean} whether anything was
   */
  leave(events) {
    const left = new Set([...this.#left.values()].flat());
    const fresh = events.filter((event) => !left.has(event));
    let text = utf8(JSON.stringify(fresh));
    while (text.length > ROOM && fresh.pop()) text = utf8(JSON.stringify(fresh));
    if (!fresh.length || !this.#ready) return false;
    const { id, stream } = this.#ready;
    this.#ready = undefined; // no stream is used twice
    try {
      this.#shelf?.setItem(`${this.#prefix}${id}`, base64url(enciphered(text, stream)));
      this.#left.set(`${this.#prefix}${id}`, fresh);
    } catch {
      return false; // there is no room
    }
    return true;
  }

  /**
   * Return what pages that ended have left, in its order; what is no text of this device is removed.
   * @param {CryptoKey} secret
   */
  async found(secret) {
    for (const key of this.keys()) {
      try {
        const text = fromBase64url(this.#shelf?.getItem(key) ?? "");
        const stream = await streamOf(secret, key.slice(this.#prefix.length));
        this.#left.set(key, JSON.parse(new TextDecoder().decode(enciphered(text, stream))));
      } catch {
        this.#shelf?.removeItem(key);
      }
    }
    return [...this.#left.values()].flat().sort((a, b) => a.seq - b.seq);
  }

  /**
   * Remove what is in the store by now.
   * @param {Set<Recorded>} stored
   */
  settle(stored) {
    for (const [key, events] of this.#left) {
      if (!events.every((event) => stored.has(event))) continue;
      this.#shelf?.removeItem(key);
      this.#left.delete(key);
    }
  }

  /** Remove all of it. */
  clear() {
    for (const key of this.keys()) this.#shelf?.removeItem(key);
    this.#left.clear();
    this.#ready = undefined;
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
