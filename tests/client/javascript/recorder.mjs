// Records a value of each of N metrics, from number FIRST on, on a device in a file: node recorder.mjs PATH FIRST N.

import { fileStore } from "../../../client/javascript/file.js";
import { Client } from "../../../client/javascript/index.js";
import { outcomeOf } from "./outcome.mjs";
import { registryOfWords } from "./registries.mjs";

const [path, first, n] = process.argv.slice(2);
const names = Array.from({ length: Number(n) }, (_, i) => `m${Number(first) + i}`);
const registry = await registryOfWords(names);
const client = await Client.open({ registry, consent: true, store: fileStore(path) });
for (const name of names) {
  const outcome = await outcomeOf(client, name, "duckduckgo");
  if (outcome !== "recorded") throw new Error(outcome);
}
