// The store of a page: the documents of a device in IndexedDB, which all tabs of the origin share.
//
// Each change is one transaction: all of its writes happen, or none, and no other change comes between. The secret is
// a CryptoKey that cannot be exported. A script of the page can use the key, but cannot read its bytes.

import { withDeadline } from "./deadline.js";

/** @typedef {import("../documents.js").Documents} Documents */

const TABLE = "documents"; // the object store of the database: one row for each document, by its name

/**
 * Return a store in a database of this origin. The database is created at the first change. index.d.ts has an example.
 * @param {string} name stores with different names are different devices
 * @returns {import("../index.js").Store}
 */
export function indexedDbStore(name) {
  const path = `rappor ${name}`;
  /** @type {Promise<IDBDatabase> | undefined} */
  let opened;
  const forget = () => void (opened = undefined);

  /**
   * Open the database.
   * @param {boolean} mayCreate whether the database may be created: a page without consent must leave no trace
   */
  async function open(mayCreate) {
    const request = indexedDB.open(path, 1);
    request.onupgradeneeded = () =>
      mayCreate ? request.result.createObjectStore(TABLE) : request.transaction?.abort();
    const database = await awaitRequest(request);
    database.onclose = forget; // for example after the person has cleared the site's data
    // Another tab deletes the database, for a withdrawal. An open connection would block the deletion.
    database.onversionchange = () => {
      database.close();
      forget();
    };
    return database;
  }

  /**
   * Return the open database. If it does not open, or not in time, the next call tries again.
   * @param {boolean} mayCreate
   */
  function database(mayCreate) {
    if (opened) return opened;
    opened = open(mayCreate);
    withDeadline(opened.catch(forget)).catch(forget);
    return opened;
  }

  /**
   * Run work in one transaction, and return its result after the transaction has ended.
   * @template T
   * @param {IDBTransactionMode} mode
   * @param {boolean} isStrict whether to wait for the disk
   * @param {(table: IDBObjectStore) => Promise<T>} work may wait for requests of the table only: any other wait would
   *   end the transaction
   * @returns {Promise<T>}
   */
  async function run(mode, isStrict, work) {
    const transaction = (await database(mode === "readwrite")).transaction(TABLE, mode, {
      durability: isStrict ? "strict" : "relaxed",
    });
    return new Promise((resolve, reject) => {
      const commit = (/** @type {T} */ result) => {
        transaction.oncomplete = () => resolve(result);
        transaction.commit(); // at once, and not only when the results of all writes have been read
      };
      const fail = (/** @type {unknown} */ error) => {
        reject(error);
        transaction.abort();
      };
      transaction.onabort = () => reject(transaction.error);
      const worked = work(transaction.objectStore(TABLE)).then(commit);
      worked.catch(fail).catch(() => {}); // `abort` raises if the transaction has ended already
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
    pageStorage: findLocalStorage(),
    read: async (names) => {
      try {
        return await run("readonly", false, (table) => readDocumentsOf(table, names));
      } catch (error) {
        // `onupgradeneeded` has aborted the creation: there is no database, hence no document.
        if (/** @type {Error} */ (error).name === "AbortError") return {};
        throw error;
      }
    },
    update: (names, work, { strict = false } = {}) =>
      run("readwrite", strict, async (table) => {
        const documents = await readDocumentsOf(table, names);
        const result = work(documents);
        for (const name of names) {
          const document = documents[name];
          if (document === undefined) table.delete(name);
          else table.put(document, name);
        }
        return result;
      }),
    clear: async (documents) => {
      // A damaged database cannot be changed. It is deleted, and created anew for the record that remains.
      await close();
      await awaitRequest(indexedDB.deleteDatabase(path));
      if (documents.device) {
        await run("readwrite", true, async (table) => table.put(documents.device, "device"));
      }
    },
    close,
  };
}

/** Return the origin's localStorage; undefined if it is blocked, and in workers, which have none. */
function findLocalStorage() {
  try {
    return globalThis.localStorage ?? undefined;
  } catch {
    return undefined;
  }
}

/**
 * Read documents from the table. A document that does not exist is undefined.
 * @param {IDBObjectStore} table
 * @param {(keyof Documents)[]} names
 * @returns {Promise<Documents>}
 */
async function readDocumentsOf(table, names) {
  const results = await Promise.all(names.map((name) => awaitRequest(table.get(name))));
  return Object.fromEntries(names.map((name, i) => [name, results[i]]));
}

/**
 * Return the result of a request of IndexedDB as a promise.
 * @template T
 * @param {IDBRequest<T>} request
 * @returns {Promise<T>}
 */
function awaitRequest(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
