// Public API for tests of programs that embed the client.

export { memoryStore } from "./src/memory_store.js";
