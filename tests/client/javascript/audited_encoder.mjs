// Program for `rappor audit --questions` and `--exact`: each line of its input is a value that it encodes.

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

/** Return cohort, true bits, permanent response and report of a value. Without coins the report is random. */
async function encodeInput({ secret: hex, metric, epoch, value, params: document, coins }) {
  const secret = await importSecret(Buffer.from(hex, "hex"));
  const params = await readParams(document);
  const scope = encodeScope(metric, epoch, params);
  const cohort = await deriveCohort(secret, scope, params);
  const bits = await encode(params, readValue(params, parseValue(params, value)).input, cohort);
  const permanent = await derivePermanentResponse(secret, scope, params, bits);
  const drawCoins = coins ? () => coins : drawSystemCoins;
  const report = drawInstantaneousResponse(permanent, params, drawCoins);
  const digits = (bytes) => Array.from({ length: params.k }, (_, i) => (bytes[i >> 3] >> (i & 7)) & 1).join("");
  return { cohort, bits: digits(bits), permanent: digits(permanent), report: digits(report) };
}

/** Parse the text of a value as `rappor encode` does. */
function parseValue({ encoding, fields }, text) {
  if (fields) {
    const texts = text.split(text.includes("\x1f") ? "\x1f" : "\t");
    return Object.fromEntries(fields.map((field, i) => [field, texts[i]]));
  }
  if (encoding === "boolean") return ["true", "yes", "1"].includes(text.trim().toLowerCase());
  if (encoding === "set") return text.split("\t");
  return encoding === "buckets" ? Number(text) : text;
}
