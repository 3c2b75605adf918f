// Segments: public properties of a device, sent without noise beside a report, such as its version. A
// segment has a value for each dimension of the metric: "other" stands for a value that is not listed.

import { ownEntry } from "./collections.js";

/** @typedef {import("../index.js").Dimension} Dimension */

/**
 * Return the segment of a device with these properties.
 * @param {readonly Dimension[]} dimensions sorted by name
 * @param {Readonly<Record<string, string>>} properties
 * @returns {Record<string, string>}
 */
export function segmentOf(dimensions, properties) {
  const entries = dimensions.map(([name, values]) => {
    const value = ownEntry(properties, name) ?? "";
    return [name, values.includes(value) ? value : "other"];
  });
  return Object.fromEntries(entries);
}

/**
 * Return whether a device may send a segment under these dimensions. No segment is always allowed.
 * @param {Readonly<Record<string, string>> | undefined} segment
 * @param {readonly Dimension[]} dimensions
 */
export function isListed(segment, dimensions) {
  return !segment || JSON.stringify(segmentOf(dimensions, segment)) === JSON.stringify(segment);
}
