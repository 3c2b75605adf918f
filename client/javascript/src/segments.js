// Segments: what a device tells of itself in the clear beside its report, such as its version: a value
// of each dimension that the registry lists, "other" where its own is not listed.

import { own } from "./records.js";

/** @typedef {import("../index.js").Dimension} Dimension */

/**
 * Return the segment of a device with these properties.
 * @param {readonly Dimension[]} dimensions by their names in order
 * @param {Readonly<Record<string, string>>} properties
 * @returns {Record<string, string>}
 */
export function segmentOf(dimensions, properties) {
  const told = dimensions.map(([name, values]) => {
    const value = own(properties, name) ?? "";
    return [name, values.includes(value) ? value : "other"];
  });
  return Object.fromEntries(told);
}

/**
 * Return whether devices may tell a segment under these dimensions; none may always be.
 * @param {Readonly<Record<string, string>> | undefined} segment
 * @param {readonly Dimension[]} dimensions
 */
export function isListed(segment, dimensions) {
  return !segment || JSON.stringify(segmentOf(dimensions, segment)) === JSON.stringify(segment);
}
