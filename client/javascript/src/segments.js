// Segments: groups of devices with the same public properties, such as version and country.
//
// A device sends its segment with a report, and without noise. The properties are not secret, and an analyst can
// compare the segments. A metric lists dimensions (names of properties), each with its values. A device sends one value
// for each dimension, and "other" for a value that is not listed, so that a rare value does not identify the device:
//
//     dimensions                  [["country", ["de", "fr"]], ["version", ["2"]]]
//     properties of the device    { version: "2" }
//     segment                     { country: "other", version: "2" }

import { getOwnEntry } from "./collections.js";

/** @typedef {import("../index.js").Dimension} Dimension */

/**
 * Return the segment of a device: its value of each dimension, or "other".
 * @param {readonly Dimension[]} dimensions sorted by name
 * @param {Readonly<Record<string, string>>} properties of the device by name. A property that is no
 *   dimension is never sent
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
 * Return whether a device may send a segment under these dimensions: every value is listed or "other". True without a
 * segment. False, for example, if a new registry has removed a dimension.
 * @param {Readonly<Record<string, string>> | undefined} segment
 * @param {readonly Dimension[]} dimensions
 */
export function isListed(segment, dimensions) {
  // The segment is listed if `chooseSegment` returns the same segment for its own values. Both texts have their keys in
  // the same order: dimensions are sorted by name, and `chooseSegment` wrote the stored segment in this order, too.
  return !segment || JSON.stringify(chooseSegment(dimensions, segment)) === JSON.stringify(segment);
}
