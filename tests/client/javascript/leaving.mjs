// Sends one report, leaves another one to the sender for an hour, and ends.

import { readFileSync } from "node:fs";

import { Client } from "../../../client/javascript/index.js";
import { memoryStore } from "../../../client/javascript/testing.js";
import { told } from "./told.mjs";

const registry = JSON.parse(readFileSync(new URL("registry.json", import.meta.url), "utf8"));
const body = JSON.stringify({ reports: [{ status: "accepted" }] });
const transport = { send: async () => ({ status: 200, body }) };
const options = { registry, consent: true, store: memoryStore(), transport, maxDelay: 3600 };
const client = await Client.open({ ...options, coins: (n) => new Uint32Array(n).fill(2 ** 31) });
await told(client, "page", "a");
await client.flush({ timeout: 60 });
await told(client, "page", "a");
console.log(await client.waiting());
