import type { Store } from "./index.js";

/** One private file; several processes may share it. */
export function fileStore(path: string): Store;
