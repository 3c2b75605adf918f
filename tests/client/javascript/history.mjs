// Replays histories of a device, one line of JSON each; prints the sent reports, the outcomes and the reserved nats.
//
// `replay_in_python` in test_same_device.py does the same with the Python client.

import { createInterface } from "node:readline";

import { Client } from "../../../client/javascript/index.js";
import { createDevice } from "../../../client/javascript/src/state.js";
import { memoryStore } from "../../../client/javascript/testing.js";
import { outcomeOf } from "./outcome.mjs";

console.warn = () => {};
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await replay(JSON.parse(line))));
}

async function replay({ secret, registries, events, coin }) {
  const store = memoryStore();
  store.documents = {
    identity: { secretId: "m", secret: Buffer.from(secret, "hex").toString("base64url") },
    device: createDevice("m"),
  };
  let now = 0;
  let stop;
  const statuses = [];
  const sent = {};
  const transport = {
    send: async (text) => {
      const status = statuses.shift() ?? 200;
      const { id, reports } = JSON.parse(text);
      const [{ metric, params, cohort, bits }] = reports;
      sent[id] = [metric, params, cohort, bits];
      return { status, body: JSON.stringify({ reports: [{ status: "accepted" }], stop }) };
    },
  };
  const open = ({ open: number, caps: budgetCap, segment }) =>
    Client.open({
      registry: registries[number],
      consent: true,
      budgetCap,
      segment,
      store,
      transport,
      background: false,
      clock: () => now,
      coins: (n) => Array(n).fill(coin + ((now * 7919) % 1009)), // as `coin_at` in Python
    });
  let client;
  const recorded = [];
  for (const event of events) {
    now = event.now;
    if (event.open !== undefined) client = await open(event);
    if (event.metric) recorded.push((await outcomeOf(client, event.metric, parseValue(event.value))) === "recorded");
    if (event.optOut) await client.optOut(event.optOut);
    if (event.flush) {
      statuses.splice(0, Infinity, ...event.flush);
      stop = event.stop;
      await client.flush({ timeout: 1 });
    }
    if (event.withdraw) await client.withdraw();
  }
  const { nats, metrics, reserved } = await client.privacySpent();
  return { recorded, sent: Object.values(sent), nats, metrics, reserved };
}

/** Return a value of a history. JSON has no NaN, so a text stands for NaN. */
function parseValue(value) {
  return value === "NaN" ? NaN : value;
}
