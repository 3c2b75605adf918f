// The secret of a device, as a key of WebCrypto, and the bytes that are derived from it.
//
// The secret is 32 random bytes. All coins that must stay the same for years are derived from it: cohort, part,
// sampling, report day and permanent response (randomizer.js). The secret is imported as a CryptoKey that cannot be
// exported. Then no script of the page can read the bytes of the secret, and no log and no error can contain them.

import { concatBytes, encodeUtf8 } from "./bytes.js";

/** Length of the secret in bytes. HKDF-Expand with SHA-256 needs a pseudorandom key of at least 32 bytes (RFC 5869). */
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
 * Return n bytes of HKDF-Expand with SHA-256 (RFC 5869 section 2.3) and the secret as the pseudorandom key.
 *
 * The HKDF of WebCrypto always makes the extract step first, which turns an uneven key into a uniform one. The secret
 * is uniform already, and the protocol has no extract step, so HKDF-Expand is computed here.
 * @param {CryptoKey} secret
 * @param {Uint8Array | string} info names the use of the bytes; different texts give independent bytes
 * @param {number} n at most 8160, the limit of HKDF
 * @returns {Promise<Uint8Array>}
 */
export async function expand(secret, info, n) {
  const infoBytes = typeof info === "string" ? encodeUtf8(info) : info;
  // T(i) = HMAC(secret, T(i - 1) + info + i) has 32 bytes, and the output is T(1) + T(2) + ...
  let block = new Uint8Array(0);
  const blocks = [];
  for (let counter = 1; blocks.length * 32 < n; counter++) {
    const message = concatBytes(block, infoBytes, Uint8Array.of(counter));
    block = new Uint8Array(await crypto.subtle.sign("HMAC", secret, /** @type {any} */ (message)));
    blocks.push(block);
  }
  return concatBytes(...blocks).subarray(0, n);
}
