import type { Documents, Store } from "./index.js";

/** Return a store in memory. `documents` contains its documents. */
export function memoryStore(): Store & { documents: Documents };
