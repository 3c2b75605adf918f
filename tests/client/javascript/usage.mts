// A program as a user writes it. TypeScript checks it against the declarations, and the declarations against the code.

import { Client, type Outcome, type RegistryDocument } from "../../../client/javascript/index.js";
import { fileStore } from "../../../client/javascript/file.js";
import { memoryStore } from "../../../client/javascript/testing.js";
import { Client as Real } from "../../../client/javascript/src/client.js";
import { memoryStore as realStore } from "../../../client/javascript/src/memory_store.js";

declare const registry: RegistryDocument;
declare const real: Real;

export async function use(): Promise<Outcome> {
  const client: Client = await Client.open({ registry, consent: true, collector: "/telemetry" });
  await Client.open({ registry, consent: false, store: fileStore("device.json"), maxDelay: 1 });
  // @ts-expect-error consent has no default
  await Client.open({ registry });
  // @ts-expect-error a misspelt option
  await Client.open({ registry, consent: true, colector: "/telemetry" });
  // @ts-expect-error a name is a text
  await client.record(7, "dark");
  const result = await client.flush({ timeout: 2 });
  const nats: number = (await client.privacySpent()).nats + result.sent;
  const remaining: readonly string[] = (await client.withdraw()).left;
  const notice: string | undefined = client.metrics.get("theme")?.notice;
  console.log(nats, remaining, notice);
  return client.record("theme", "dark");
}

export const declared: [Client, ReturnType<typeof memoryStore>] = [real, realStore()];
