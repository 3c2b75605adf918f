// Public API for programs on Node: the store in a file. It is apart from index.js because pages have no files.

export { fileStore } from "./src/file_store.js";
