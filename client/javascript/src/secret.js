// The secret of a device: a key of WebCrypto that cannot be exported, so no log and no error can show it.

import { concat, utf8 } from "./bytes.js";

export const SECRET_BYTES = 32;

const ALGORITHM = { name: "HMAC", hash: "SHA-256" };

/**
 * Import 32 bytes as a key that cannot be exported.
 * @param {Uint8Array} bytes
 * @returns {Promise<CryptoKey>}
 */
export function importSecret(bytes) {
  return crypto.subtle.importKey("raw", /** @type {any} */ (bytes), ALGORITHM, false, ["sign"]);
}

/**
 * Return n bytes of HKDF-Expand-SHA256 (RFC 5869 section 2.3) with the secret as PRK. WebCrypto's
 * own HKDF always extracts first.
 * @param {CryptoKey} secret
 * @param {Uint8Array | string} info
 * @param {number} n
 * @returns {Promise<Uint8Array>}
 */
export async function expand(secret, info, n) {
  const head = typeof info === "string" ? utf8(info) : info;
  let block = new Uint8Array(0);
  const blocks = [];
  for (let counter = 1; blocks.length * 32 < n; counter++) {
    const message = concat(block, head, Uint8Array.of(counter));
    block = new Uint8Array(await crypto.subtle.sign("HMAC", secret, /** @type {any} */ (message)));
    blocks.push(block);
  }
  return concat(...blocks).subarray(0, n);
}
