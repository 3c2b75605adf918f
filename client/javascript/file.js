// Public API for programs on Node.

export { fileStore } from "./src/file_store.js";
