import type { Documents, Store } from "./index.js";

/**
 * Return an empty store in memory, for tests of programs that embed the client. Its property `documents` has the
 * documents that the client has written.
 *
 * @example
 * import { memoryStore } from "rappor-client/testing";
 * const store = memoryStore();
 * const clock = () => Date.UTC(2026, 10, 18, 12) / 1000;
 * const client = await Client.open({ registry, consent: true, store, clock });
 * client.record("theme", "dark").outcome; // "recorded"
 * await client.close();
 * Object.keys(store.documents.device.pending); // ["theme 2026-Q4"]
 */
export function memoryStore(): Store & { documents: Documents };
