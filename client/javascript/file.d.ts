import type { Store } from "./index.js";

/** Return a store in one private file, which several processes may share. */
export function fileStore(path: string): Store;
