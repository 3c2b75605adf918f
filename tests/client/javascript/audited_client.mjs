// Program for `rappor audit --client`: each line of its input is a history, which it runs on a device in a folder.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { fileStore } from "../../../client/javascript/file.js";
import { Client } from "../../../client/javascript/index.js";
import { outcomeOf } from "./outcome.mjs";

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await runHistory(JSON.parse(line))));
}

/**
 * Record values; return the queued reports and the privacy loss, in nats.
 *
 * `registry` is the path of a TOML file. The same registry is in a JSON file beside it. The keys of the result are
 * those that the audit reads.
 */
async function runHistory({ folder, registry, metric, now: start, events }) {
  const store = fileStore(join(folder, "telemetry.json"));
  const document = JSON.parse(readFileSync(registry.replace(/\.toml$/, ".json"), "utf8"));
  let now = start;
  const client = await Client.open({ registry: document, consent: true, store, clock: () => now });
  for (const [timestamp, value] of events) {
    now = timestamp;
    await outcomeOf(client, metric, value);
  }
  const { spool } = await store.read(["spool"]);
  const uploaded = spool?.uploads.map(({ body }) => JSON.parse(body).reports[0]) ?? [];
  const waiting = [...uploaded, ...(spool?.reports ?? [])].map(
    ({ metric, params, cohort, bits, sendAfter }) => ({ metric, params, cohort, bits, due: sendAfter }),
  );
  await client.close();
  return { waiting, spent: (await client.privacySpent()).nats };
}
