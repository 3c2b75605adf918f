// Records a value n times on a device in a file: node recorder.mjs PATH N.

import { readFileSync } from "node:fs";

import { fileStore } from "../../../client/javascript/file.js";
import { Client } from "../../../client/javascript/index.js";
import { told } from "./told.mjs";

const registry = JSON.parse(readFileSync(new URL("registry.json", import.meta.url), "utf8"));
const [path, n] = process.argv.slice(2);
const client = await Client.open({ registry, consent: true, store: fileStore(path) });
for (let i = 0; i < Number(n); i++) {
  const outcome = await told(client, "page", "duckduckgo");
  if (outcome !== "kept") throw new Error(outcome);
}
