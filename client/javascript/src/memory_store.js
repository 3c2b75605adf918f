// The device's documents in memory, for tests of programs that embed the client.

/** @typedef {import("../documents.js").Documents} Documents */

/**
 * Return a store that forgets everything with the process; `documents` shows what it holds.
 * @returns {import("../index.js").Store & { documents: Documents }}
 */
export function memoryStore() {
  /** @type {import("../index.js").Store & { documents: Documents }} */
  const store = {
    holdsKeys: true,
    channel: undefined,
    documents: {},
    read: async (names) => chosen(store.documents, names),
    update: async (names, work) => {
      const documents = chosen(store.documents, names);
      const result = work(documents);
      store.documents = { ...store.documents, ...chosen(documents, names) };
      return result;
    },
    clear: async (documents) => {
      store.documents = documents;
    },
    close: async () => {},
  };
  return store;
}

/**
 * Return copies, so that a change that fails changes nothing.
 * @param {Documents} whole
 * @param {(keyof Documents)[]} names
 * @returns {Documents}
 */
function chosen(whole, names) {
  return Object.fromEntries(names.map((name) => [name, structuredClone(whole[name])]));
}
