// The store of a page: documents in IndexedDB, which tabs share. Each change is one transaction. The secret
// is a CryptoKey that no script can read.

import { within } from "./deadline.js";

/** @typedef {import("../documents.js").Documents} Documents */

const TABLE = "documents";

/**
 * Return a store in a database of this origin. The database is opened at its first use.
 * @param {string} name
 * @returns {import("../index.js").Store}
 */
export function indexedDbStore(name) {
  const path = `rappor ${name}`;
  /** @type {Promise<IDBDatabase> | undefined} */
  let opened;
  const forget = () => void (opened = undefined);

  /** @param {boolean} mayCreate whether the database may be created; a read does not create one */
  async function open(mayCreate) {
    const request = indexedDB.open(path, 1);
    request.onupgradeneeded = () =>
      mayCreate ? request.result.createObjectStore(TABLE) : request.transaction?.abort();
    const database = await resultOf(request);
    database.onclose = forget; // for example after the person has cleared the site's data
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
    within(opened.catch(forget)).catch(forget); // the next call opens it again
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
        transaction.commit(); // without waiting for the results of the writes
      };
      const fail = (/** @type {unknown} */ error) => {
        reject(error);
        transaction.abort();
      };
      transaction.onabort = () => reject(transaction.error);
      const worked = work(transaction.objectStore(TABLE)).then(commit);
      worked.catch(fail).catch(() => {}); // abort raises if the transaction has ended already
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
    pageStorage: localStorageOrNone(),
    read: async (names) => {
      try {
        return await run("readonly", false, (table) => documentsOf(table, names));
      } catch (error) {
        if (/** @type {Error} */ (error).name === "AbortError") return {}; // `onupgradeneeded` aborted: there is no database
        throw error;
      }
    },
    update: (names, work, { strict = false } = {}) =>
      run("readwrite", strict, async (table) => {
        const documents = await documentsOf(table, names);
        const result = work(documents);
        for (const name of names) {
          const document = documents[name];
          if (document === undefined) table.delete(name);
          else table.put(document, name);
        }
        return result;
      }),
    clear: async (documents) => {
      await close();
      await resultOf(indexedDB.deleteDatabase(path));
      if (documents.device) {
        await run("readwrite", true, async (table) => table.put(documents.device, "device"));
      }
    },
    close,
  };
}

/** Return the origin's localStorage; undefined if it is blocked, and in workers, which have none. */
function localStorageOrNone() {
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
  const results = await Promise.all(names.map((name) => resultOf(table.get(name))));
  return Object.fromEntries(names.map((name, i) => [name, results[i]]));
}

/**
 * @template T
 * @param {IDBRequest<T>} request
 * @returns {Promise<T>}
 */
function resultOf(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
