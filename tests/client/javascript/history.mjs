// Replays histories of a device, one line of JSON each, and prints the reports that left it.

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
    send: async (written) => {
      const status = statuses.shift() ?? 200;
      const { id, reports } = JSON.parse(written);
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
      coins: (n) => Array(n).fill(coin + ((now * 7919) % 1009)),
    });
  let client;
  const recorded = [];
  for (const event of events) {
    now = event.now;
    if (event.open !== undefined) client = await open(event);
    if (event.metric) recorded.push((await outcomeOf(client, event.metric, valueOf(event.value))) === "recorded");
    if (event.optOut) await client.optOut(event.optOut);
    if (event.flush) {
      statuses.splice(0, Infinity, ...event.flush);
      stop = event.stop;
      await client.flush({ timeout: 1 });
    }
    if (event.withdraw) await client.withdraw();
  }
  const { reserved } = await client.privacySpent();
  return { recorded, sent: Object.values(sent), reserved };
}

function valueOf(value) {
  return value === "NaN" ? NaN : value;
}
