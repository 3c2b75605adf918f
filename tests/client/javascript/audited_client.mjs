// Program for `rappor audit --client`: runs histories on devices in folders, one line of JSON for each.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { fileStore } from "../../../client/javascript/file.js";
import { Client } from "../../../client/javascript/index.js";
import { outcomeOf } from "./outcome.mjs";

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await runHistory(JSON.parse(line))));
}

/** Record values and return the queued reports. The registry is in a JSON file beside the TOML file. */
async function runHistory({ folder, registry, metric, now, events }) {
  const store = fileStore(join(folder, "telemetry.json"));
  const document = JSON.parse(readFileSync(registry.replace(/\.toml$/, ".json"), "utf8"));
  let time = now;
  const clock = () => time;
  const client = await Client.open({ registry: document, consent: true, store, clock });
  for (const [timestamp, value] of events) {
    time = timestamp;
    await outcomeOf(client, metric, value);
  }
  const { spool } = await store.read(["spool"]);
  const sent = spool?.uploads.map(({ body }) => JSON.parse(body).reports[0]) ?? [];
  const waiting = [...sent, ...(spool?.reports ?? [])].map(
    ({ metric, params, cohort, bits, sendAfter: due }) => ({ metric, params, cohort, bits, due }),
  );
  await client.close();
  return { waiting, spent: (await client.privacySpent()).nats };
}
