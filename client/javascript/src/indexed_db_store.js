// The store of a page: the documents of a device in IndexedDB, which all tabs of the origin share.
//
// The database has one object store with one row for each document: identity, device, spool and log. Each change
// (`update`) is one transaction, in this order:
//
// 1. Open the database, unless it is open. The first change creates it.
// 2. Read the documents, change them in `work`, and write them.
// 3. Commit. All writes of the transaction happen, or none, and no other tab changes the documents in between.
//
// The secret is a CryptoKey that cannot be exported. A script of the page can use the key, but cannot read its bytes.
//
// Bad cases: a page without consent must not create the database (`mayCreate`); a database that the browser has closed
// is opened again (`forget`); a damaged database is deleted for a withdrawal (`clear`).

import { withDeadline } from "./deadline.js";

/** @typedef {import("../documents.js").Documents} Documents */

const TABLE = "documents"; // name of the object store of the database
/** Raised by a read if the database does not exist. */
class NoDatabase extends Error {}

/**
 * Return a store in a database of this origin. The database is created at the first change. index.d.ts has an example.
 * @param {string} name stores with different names are different devices
 * @returns {import("../index.js").Store}
 */
export function indexedDbStore(name) {
  const path = `rappor ${name}`;
  /** @type {Promise<IDBDatabase> | undefined} the open database, or the attempt to open it that is under way */
  let opened;
  const forget = () => void (opened = undefined); // the next call opens the database again

  /**
   * Open the database.
   * @param {boolean} mayCreate whether a database that does not exist is created. False for a read, because a page
   *   without consent reads the store, and must leave no trace. The result then rejects with NoDatabase
   */
  async function open(mayCreate) {
    const request = indexedDB.open(path, 1);
    let isAbsent = false;
    request.onupgradeneeded = () => {
      if (mayCreate) request.result.createObjectStore(TABLE);
      else {
        isAbsent = true;
        request.transaction?.abort();
      }
    };
    const database = await awaitRequest(request).catch((error) => {
      throw isAbsent ? new NoDatabase() : error;
    });
    database.onclose = forget; // for example after the person has cleared the site's data
    // Another tab deletes the database, for a withdrawal. An open connection would block the deletion.
    database.onversionchange = () => {
      database.close();
      forget();
    };
    return database;
  }

  /**
   * Return the open database, or open it. If it does not open within STORE_PATIENCE seconds, or at all, the next call
   * tries again.
   * @param {boolean} mayCreate
   */
  function database(mayCreate) {
    if (opened) return opened;
    opened = open(mayCreate);
    const forgetFailure = opened.catch(forget);
    withDeadline(forgetFailure).catch(forget); // rejects only at the deadline
    return opened;
  }

  /**
   * Run work in one transaction, and return its result after the transaction has ended.
   * @template T
   * @param {IDBTransactionMode} mode
   * @param {boolean} isStrict whether to wait for the disk
   * @param {(table: IDBObjectStore) => Promise<T>} work may wait for requests of the table only. During any other wait
   *   the browser commits the transaction
   * @returns {Promise<T>}
   */
  async function run(mode, isStrict, work) {
    const transaction = (await database(mode === "readwrite")).transaction(TABLE, mode, {
      durability: isStrict ? "strict" : "relaxed",
    });
    return new Promise((resolve, reject) => {
      const commit = (/** @type {T} */ result) => {
        transaction.oncomplete = () => resolve(result);
        transaction.commit(); // otherwise the browser would first report the result of each write to the page
      };
      const fail = (/** @type {unknown} */ error) => {
        reject(error);
        transaction.abort();
      };
      transaction.onabort = () => reject(transaction.error);
      const worked = work(transaction.objectStore(TABLE)).then(commit);
      worked.catch(fail).catch(() => {}); // `abort` in `fail` raises if the transaction has ended already
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
        // No other error means that there is no document. Bad case: the browser closes a damaged database, and its reads
        // end with AbortError. A withdrawal would report that nothing remains.
        if (error instanceof NoDatabase) return {};
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
      // A damaged database cannot be changed. It is deleted, and created again for the state that remains.
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
