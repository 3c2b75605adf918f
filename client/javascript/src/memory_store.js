// The store in memory, for tests of programs that embed the client. Its documents are gone when the object is gone.

/** @typedef {import("../documents.js").Documents} Documents */

/**
 * Return an empty store in memory. Its property `documents` has the documents that a client has written, for a test to
 * look at.
 * @returns {import("../index.js").Store & { documents: Documents }}
 */
export function memoryStore() {
  /** @type {Map<string, string>} */
  const texts = new Map();
  /** @type {import("../index.js").Store & { documents: Documents }} */
  const store = {
    holdsKeys: true, // structuredClone copies a CryptoKey
    channel: undefined, // no BroadcastChannel: other clients of this store get no notice of a withdrawal
    // In place of localStorage, for deferred events (deferred_events.js).
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
    read: async (names) => copyDocuments(store.documents, names),
    update: async (names, work) => {
      const documents = copyDocuments(store.documents, names);
      const result = work(documents);
      store.documents = { ...store.documents, ...copyDocuments(documents, names) };
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
 * Return copies of the documents with some names. Work that changes a document and then raises must leave the store as
 * it was, as in the other stores. So work gets copies.
 * @param {Documents} documents
 * @param {(keyof Documents)[]} names
 * @returns {Documents}
 */
function copyDocuments(documents, names) {
  return Object.fromEntries(names.map((name) => [name, structuredClone(documents[name])]));
}
