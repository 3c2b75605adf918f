// Flushes without a limit what waits for thirty days, and prints how many steps that takes in a moment.

import { readFileSync } from "node:fs";

import { Client } from "../../../client/javascript/index.js";
import { memoryStore } from "../../../client/javascript/testing.js";
import { told } from "./told.mjs";

const registry = JSON.parse(readFileSync(new URL("registry.json", import.meta.url), "utf8"));
const body = JSON.stringify({ reports: [{ status: "accepted" }], stop: { page: "2999-01-01" } });
const transport = { send: async () => ({ status: 200, body }) };
const store = memoryStore();
let n = 0;
const update = (...words) => {
  if ((n += 1) > 20) process.exit(1); // it does not sleep
  return store.update(...words);
};
const counting = { ...store, update };
const options = { registry, consent: true, store: counting, transport, background: false };
const client = await Client.open(options);
for (let i = 0; i < 2; i++) await told(client, "page", "a");
await client.flush();
n = 0;
client.flush({ timeout: Infinity });
setTimeout(() => {
  console.log(n);
  process.exit();
}, 300);
