// Flushes without a timeout while the collector stops a metric, and prints the number of changes of the store.
//
// A flush that does not sleep would change the store again and again.

import { Client } from "../../../client/javascript/index.js";
import { memoryStore } from "../../../client/javascript/testing.js";
import { outcomeOf } from "./outcome.mjs";
import { REGISTRY } from "./registries.mjs";

const body = JSON.stringify({ reports: [{ status: "accepted" }], stop: { page: "2999-01-01" } });
const transport = { send: async () => ({ status: 200, body }) };
const store = memoryStore();
let n = 0;
const update = (...args) => {
  if ((n += 1) > 20) process.exit(1); // the flush does not sleep
  return store.update(...args);
};
let now = Date.now() / 1000;
const options = { registry: REGISTRY, consent: true, store: { ...store, update }, transport, background: false };
const client = await Client.open({ ...options, clock: () => now });
for (let i = 0; i < 2; i++) {
  await outcomeOf(client, "page", "a");
  now += 86_400;
}
await client.flush();
n = 0;
client.flush({ timeout: Infinity });
setTimeout(() => {
  console.log(n);
  process.exit();
}, 300);
