// What the version before left in a store; it is loaded where a store has it.

import { VERSION } from "./device.js";

/** @typedef {import("../documents.js").Device} Device */

/**
 * Take over the records of the version before, which counted reports beside the scopes.
 * @param {any} device
 * @returns {Device}
 */
export function takenOver(device) {
  const { patterns, carried, ...kept } = device;
  /** @param {any} scope */
  const counted = ({ admitted, ...scope }) => {
    const reports = (/** @type {string} */ pattern) => patterns[pattern]?.reports ?? {};
    const each = admitted.map((/** @type {string} */ pattern) => [pattern, reports(pattern)]);
    return { ...scope, admitted: Object.fromEntries(each) };
  };
  for (const held of Object.values(kept.held)) {
    held.tag = "0"; // it stays
    if (held.terms) held.terms.segments ??= [];
  }
  return { ...kept, v: VERSION, scopes: device.scopes.map(counted), done: {} };
}
