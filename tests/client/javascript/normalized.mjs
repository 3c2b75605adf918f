// Normalizes texts: each line of standard input is a list of a normalizer's name and a list of texts.

import { createInterface } from "node:readline";

import { loadNormalizers, normalize } from "../../../client/javascript/src/normalizers.js";

await loadNormalizers(new Set(["host", "domain"]));

for await (const line of createInterface({ input: process.stdin })) {
  const [name, texts] = JSON.parse(line);
  // A text without a normal spelling is hashed as the empty text, which Python's function returns.
  console.log(JSON.stringify(texts.map((text) => normalize(name, text) ?? "")));
}
