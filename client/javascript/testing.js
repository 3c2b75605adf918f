// Public API for tests of programs that embed the client: the store in memory.

export { memoryStore } from "./src/memory_store.js";
