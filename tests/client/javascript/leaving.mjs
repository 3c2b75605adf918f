// Sends one report, and ends while another report waits half an hour in the background sender.

import { Client } from "../../../client/javascript/index.js";
import { memoryStore } from "../../../client/javascript/testing.js";
import { outcomeOf } from "./outcome.mjs";
import { REGISTRY } from "./registries.mjs";

const DAY = 86_400;
const body = JSON.stringify({ reports: [{ status: "accepted" }] });
const transport = { send: async () => ({ status: 200, body }) };
let now = 1000 * DAY;
const options = { registry: REGISTRY, consent: true, store: memoryStore(), transport, maxDelay: 3600 };
const coins = (n) => new Uint32Array(n).fill(2 ** 31); // half of a delay
const client = await Client.open({ ...options, coins, clock: () => now });
await outcomeOf(client, "page", "a");
now += DAY;
await outcomeOf(client, "page", "a");
await client.flush({ timeout: 60 });
now += DAY;
await outcomeOf(client, "page", "a");
console.log(await client.queuedCount());
