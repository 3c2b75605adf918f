// The device's documents in IndexedDB: tabs share them, and each change is whole or not at all,
// one after the other. The secret is a key that not even the page can read.

import { within } from "./deadline.js";

/** @typedef {import("../documents.js").Documents} Documents */

const TABLE = "documents";

/**
 * Name a database of this origin; it is opened when it is first needed.
 * @param {string} name
 * @returns {import("../index.js").Store}
 */
export function indexedDbStore(name) {
  const path = `rappor ${name}`;
  /** @type {Promise<IDBDatabase> | undefined} */
  let opened;
  const forget = () => void (opened = undefined);

  /** @param {boolean} mayCreate whether a database may come to be: to look is no reason */
  async function open(mayCreate) {
    const request = indexedDB.open(path, 1);
    request.onupgradeneeded = () =>
      mayCreate ? request.result.createObjectStore(TABLE) : request.transaction?.abort();
    const database = await asked(request);
    database.onclose = forget; // the person has cleared the site's data
    database.onversionchange = () => {
      database.close();
      forget();
    };
    return database;
  }

  /** @param {boolean} mayCreate */
  function database(mayCreate) {
    if (opened) return opened;
    opened = open(mayCreate);
    within(opened.catch(forget)).catch(forget); // the next one asks anew
    return opened;
  }

  /**
   * @template T
   * @param {IDBTransactionMode} mode
   * @param {boolean} isStrict
   * @param {(table: IDBObjectStore) => Promise<T>} work
   * @returns {Promise<T>}
   */
  async function run(mode, isStrict, work) {
    const transaction = (await database(mode === "readwrite")).transaction(TABLE, mode, {
      durability: isStrict ? "strict" : "relaxed",
    });
    return new Promise((resolve, reject) => {
      const commit = (/** @type {T} */ result) => {
        transaction.oncomplete = () => resolve(result);
        transaction.commit(); // without waiting for what each write answers
      };
      const fail = (/** @type {unknown} */ error) => {
        reject(error);
        transaction.abort();
      };
      transaction.onabort = () => reject(transaction.error);
      const worked = work(transaction.objectStore(TABLE)).then(commit);
      worked.catch(fail).catch(() => {}); // it has ended already
    });
  }

  const close = async () => {
    const database = await opened;
    forget();
    database?.close();
  };

  return {
    holdsKeys: true,
    channel: name,
    shelf: shelfOf(),
    read: async (names) => {
      try {
        return await run("readonly", false, (table) => documentsOf(table, names));
      } catch (error) {
        if (/** @type {Error} */ (error).name === "AbortError") return {}; // there is no database
        throw error;
      }
    },
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
    clear: async (documents) => {
      await close();
      await asked(indexedDB.deleteDatabase(path));
      if (documents.device) {
        await run("readwrite", true, async (table) => table.put(documents.device, "device"));
      }
    },
    close,
  };
}

/** Return the origin's localStorage, if there is one and it is not blocked. */
function shelfOf() {
  try {
    return globalThis.localStorage ?? undefined;
  } catch {
    return undefined;
  }
}

/**
 * @param {IDBObjectStore} table
 * @param {(keyof Documents)[]} names
 * @returns {Promise<Documents>}
 */
async function documentsOf(table, names) {
  const found = await Promise.all(names.map((name) => asked(table.get(name))));
  return Object.fromEntries(names.map((name, i) => [name, found[i]]));
}

/**
 * @template T
 * @param {IDBRequest<T>} request
 * @returns {Promise<T>}
 */
function asked(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
