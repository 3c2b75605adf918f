// Registries of a test's own, sealed as `rappor collects --json` seals them.

import { hex } from "../../../client/javascript/src/bytes.js";
import { sha256 } from "../../../client/javascript/src/hashes.js";
import { ONE, fingerprints } from "../../../client/javascript/src/params.js";

/** Return a registry of these metrics, whose total is written as text. */
export async function registryOf(metrics, total = "Infinity") {
  return sealed({ v: 1, total, metrics });
}

/** Return a document with the seal of its very text. */
export async function sealed(rest) {
  return { ...rest, seal: hex(await sha256(JSON.stringify(rest))) };
}

/** Return a metric of a parameter set; for life, of every event, and of one pattern unless told. */
export async function metricOf(name, params, fields = {}) {
  const { fingerprint } = await fingerprints(params);
  return {
    name,
    description: "d",
    owner: "o",
    expires: "2999-12-31",
    epoch: "life",
    interval: "none",
    patterns: 1,
    sample: ONE,
    params,
    fingerprint,
    parts: [],
    segments: [],
    notice: "",
    ...fields,
  };
}
