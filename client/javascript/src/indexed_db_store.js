// The device's documents in IndexedDB: tabs share them, and each change is whole or not at all,
// one after the other. The secret is a key that not even the page can read.

/** @typedef {import("./device.js").Documents} Documents */

const TABLE = "documents";

/**
 * Name a database of this origin; it is opened when it is first needed.
 * @param {string} name
 * @returns {import("../index.js").Store}
 */
export function indexedDbStore(name) {
  /** @type {Promise<IDBDatabase> | undefined} */
  let opened;
  const database = () => {
    opened ??= open(`rappor ${name}`, () => (opened = undefined));
    opened.catch(() => (opened = undefined));
    return opened;
  };

  /**
   * @template T
   * @param {IDBTransactionMode} mode
   * @param {boolean} isStrict
   * @param {(table: IDBObjectStore) => Promise<T>} work
   */
  async function run(mode, isStrict, work) {
    const transaction = (await database()).transaction(TABLE, mode, {
      durability: isStrict ? "strict" : "relaxed",
    });
    const ended = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
    ended.catch(() => {}); // whoever waits for it is told below
    try {
      const result = await work(transaction.objectStore(TABLE));
      await ended;
      return result;
    } catch (error) {
      if (mode === "readwrite") tryTo(() => transaction.abort());
      throw error;
    }
  }

  return {
    holdsKeys: true,
    channel: name,
    read: (names) => run("readonly", false, (table) => documentsOf(table, names)),
    update: (names, work, { strict = false } = {}) =>
      run("readwrite", strict, async (table) => {
        const documents = await documentsOf(table, names);
        const result = work(documents);
        for (const each of names) {
          const document = documents[each];
          if (document === undefined) table.delete(each);
          else table.put(document, each);
        }
        return result;
      }),
    clear: (documents) =>
      run("readwrite", true, async (table) => {
        table.clear();
        for (const [each, document] of Object.entries(documents)) {
          if (document !== undefined) table.put(document, each);
        }
      }),
    close: async () => {
      const open = opened;
      opened = undefined;
      (await open)?.close();
    },
  };
}

/**
 * @param {string} name
 * @param {() => void} onClosed
 * @returns {Promise<IDBDatabase>}
 */
function open(name, onClosed) {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(name, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE);
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      const opened = request.result;
      opened.onclose = onClosed; // the person has cleared the site's data
      opened.onversionchange = () => {
        opened.close();
        onClosed();
      };
      resolve(opened);
    };
  });
}

/**
 * @param {IDBObjectStore} table
 * @param {(keyof Documents)[]} names
 * @returns {Promise<Documents>}
 */
async function documentsOf(table, names) {
  const found = names.map((name) => {
    const request = table.get(name);
    return new Promise((resolve, reject) => {
      request.onsuccess = () => resolve([name, request.result]);
      request.onerror = () => reject(request.error);
    });
  });
  return Object.fromEntries(await Promise.all(found));
}

/** @param {() => void} action */
function tryTo(action) {
  try {
    action();
  } catch {
    // it has ended already
  }
}
