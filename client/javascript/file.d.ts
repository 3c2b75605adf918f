import type { Store } from "./index.js";

/**
 * Return a store in one private file, for programs on Node. Several processes and threads may share the file.
 *
 * The file and its folder are created at the first change. A file that is not a plain file of the user disables the
 * client that opens the store.
 *
 * @param path path of the file; a relative path is resolved when the function is called
 *
 * @example
 * import { fileStore } from "rappor-client/file";
 * const client = await Client.open({ registry, consent: true, store: fileStore("device/telemetry.json") });
 * client.isEnabled; // true
 */
export function fileStore(path: string): Store;
