import type { Documents, Store } from "./index.js";

/** A store that forgets everything with the page; `documents` shows what it holds. */
export function memoryStore(): Store & { documents: Documents };
