// Segments: public properties of a device, such as its version, that are sent without noise beside a report.
//
// A metric lists dimensions, each with its values. A device sends one value for each dimension, and "other" for
// a value that is not listed:
//
//     dimensions                                          properties of the device    segment
//     [["country", ["de", "fr"]], ["version", ["2"]]]     { version: "2" }            { country: "other", version: "2" }

import { getOwnEntry } from "./collections.js";

/** @typedef {import("../index.js").Dimension} Dimension */

/**
 * Return the segment of a device.
 * @param {readonly Dimension[]} dimensions sorted by name
 * @param {Readonly<Record<string, string>>} properties of the device by name; unlisted ones are never sent
 * @returns {Record<string, string>} a value for each dimension, in the order of the dimensions
 */
export function chooseSegment(dimensions, properties) {
  const entries = dimensions.map(([name, values]) => {
    const value = getOwnEntry(properties, name) ?? "";
    return [name, values.includes(value) ? value : "other"];
  });
  return Object.fromEntries(entries);
}

/**
 * Return whether a device may send a segment under these dimensions. A report without a segment may always be
 * sent.
 * @param {Readonly<Record<string, string>> | undefined} segment
 * @param {readonly Dimension[]} dimensions
 */
export function isListed(segment, dimensions) {
  // The segment is listed if choosing from its own values changes nothing. Both have the order of dimensions.
  return !segment || JSON.stringify(chooseSegment(dimensions, segment)) === JSON.stringify(segment);
}
