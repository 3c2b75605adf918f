// Program for `rappor audit --questions` and `--exact`: encodes inputs, one line of JSON for each.

import { createInterface } from "node:readline";

import { encode, readValue } from "../../../client/javascript/src/encodings.js";
import { loadNormalizers } from "../../../client/javascript/src/normalizers.js";
import { readParams } from "../../../client/javascript/src/params.js";
import {
  deriveCohort,
  drawInstantaneousResponse,
  derivePermanentResponse,
  encodeScope,
  drawSystemCoins,
} from "../../../client/javascript/src/randomizer.js";
import { importSecret } from "../../../client/javascript/src/secret.js";

await loadNormalizers(new Set(["host", "domain"]));
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await encodeInput(JSON.parse(line))));
}

async function encodeInput({ secret: hex, metric, epoch, value, params: document, coins }) {
  const secret = await importSecret(Buffer.from(hex, "hex"));
  const params = await readParams(document);
  const scope = encodeScope(metric, epoch, params);
  const cohort = await deriveCohort(secret, scope, params);
  const bits = await encode(params, readValue(params, parsed(params, value)).input, cohort);
  const permanent = await derivePermanentResponse(secret, scope, params, bits);
  const drawn = coins ? () => coins : drawSystemCoins;
  const report = drawInstantaneousResponse(permanent, params, drawn);
  const text = (bytes) => Array.from({ length: params.k }, (_, i) => (bytes[i >> 3] >> (i & 7)) & 1).join("");
  return { cohort, bits: text(bits), permanent: text(permanent), report: text(report) };
}

/** Return a value of an encoding, as `rappor encode` reads it. */
function parsed({ encoding, fields }, text) {
  if (fields) {
    const texts = text.split(text.includes("\x1f") ? "\x1f" : "\t");
    return Object.fromEntries(fields.map((field, i) => [field, texts[i]]));
  }
  if (encoding === "boolean") return ["true", "yes", "1"].includes(text.trim().toLowerCase());
  if (encoding === "set") return text.split("\t");
  return encoding === "buckets" ? Number(text) : text;
}
