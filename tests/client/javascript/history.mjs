// Replays histories that tests write as lines of JSON, and answers each with what the device holds.

import { createInterface } from "node:readline";

import { Client } from "../../../client/javascript/index.js";
import { newDevice } from "../../../client/javascript/src/device.js";
import { memoryStore } from "../../../client/javascript/testing.js";

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await replay(JSON.parse(line))));
}

async function replay({ secret, registries, events, coin }) {
  const store = memoryStore();
  store.documents = {
    identity: { mark: "m", secret: Buffer.from(secret, "hex").toString("base64url") },
    device: newDevice("m"),
  };
  let now = 0;
  let stop;
  const statuses = [];
  const transport = {
    send: async () => {
      const status = statuses.shift() ?? 200;
      const body = JSON.stringify({ reports: [{ status: "accepted" }], stop });
      return { status, body };
    },
  };
  const open = (number, caps) =>
    Client.open({
      registry: registries[number],
      consent: true,
      caps,
      store,
      transport,
      background: false,
      clock: () => now,
      coins: (n) => Array(n).fill(coin),
    });
  let client;
  const answers = [];
  for (const event of events) {
    now = event.now;
    if (event.open !== undefined) client = await open(event.open, event.caps);
    if (event.metric) answers.push(await client.record(event.metric, valueOf(event.value)));
    if (event.optOut) await client.optOut(event.optOut);
    if (event.flush) {
      statuses.splice(0, Infinity, ...event.flush);
      stop = event.stop;
      answers.push((await client.flush({ timeout: 0 })).reason);
    }
    if (event.withdraw) answers.push(String((await client.withdraw()).done));
  }
  const { device, spool, log, identity } = store.documents;
  return { answers, device, spool, log, hasSecret: Boolean(identity) };
}

function valueOf(value) {
  return value === "NaN" ? NaN : value;
}
