// A store in memory, for tests of programs that embed the client.

/** @typedef {import("../documents.js").Documents} Documents */

/**
 * Return a store in memory. `documents` contains its documents.
 * @returns {import("../index.js").Store & { documents: Documents }}
 */
export function memoryStore() {
  /** @type {Map<string, string>} */
  const texts = new Map();
  /** @type {import("../index.js").Store & { documents: Documents }} */
  const store = {
    holdsKeys: true,
    channel: undefined,
    pageStorage: {
      get length() {
        return texts.size;
      },
      key: (i) => [...texts.keys()][i] ?? null,
      getItem: (key) => texts.get(key) ?? null,
      setItem: (key, text) => void texts.set(key, text),
      removeItem: (key) => void texts.delete(key),
    },
    documents: {},
    read: async (names) => copyOf(store.documents, names),
    update: async (names, work) => {
      const documents = copyOf(store.documents, names);
      const result = work(documents);
      store.documents = { ...store.documents, ...copyOf(documents, names) };
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
 * Return copies of documents, so that work that raises changes nothing.
 * @param {Documents} whole
 * @param {(keyof Documents)[]} names
 * @returns {Documents}
 */
function copyOf(whole, names) {
  return Object.fromEntries(names.map((name) => [name, structuredClone(whole[name])]));
}
