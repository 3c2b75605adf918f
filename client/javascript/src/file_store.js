// The store of a program on Node: the documents of a device in one private file.
//
//     FILE               the documents as JSON, with a SHA-256 of the text as checksum
//     FILE.lock          exists while a process changes FILE; contains the name of the owner
//     FILE.tmp           the new file, before it replaces FILE
//     FILE.deferred-*    deferred events, one text each (deferred_events.js)
//
// Several processes, threads and containers may share the file. The steps of a change (`update`):
//
// 1. Create FILE.lock. If it exists, wait until its owner removes it.
// 2. Read FILE, and change the documents.
// 3. Write FILE.tmp. With `strict`, wait until its bytes are on the disk.
// 4. Rename FILE.tmp to FILE. The rename is atomic, so a reader without the lock sees the old documents or the new
//    ones.
// 5. Remove FILE.lock.
//
// Bad cases:
//
//     case                                           what happens
//     a process is killed during a change, and       the next process removes a lock whose owner has ended, and every
//     leaves FILE.lock and FILE.tmp                  lock that is older than 10 s. Its change or read then removes
//                                                    FILE.tmp, which contains the secret
//     a process is suspended for more than 10 s,     it looks at the lock again before the rename, and raises. The
//     and another one removes its lock               rename would undo the changes of the other process
//     the disk is full                               the change raises, and FILE stays as it is
//     FILE is a symbolic link, another user's        every operation raises. The secret would be known to another
//     file or a pipe                                 user, or would exist twice

import { createHash, randomUUID } from "node:crypto";
import {
  closeSync,
  constants,
  existsSync,
  fstatSync,
  fsyncSync,
  linkSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { hostname } from "node:os";
import { basename, dirname, join, resolve } from "node:path";

import { DamagedStoreError } from "./state.js";

/** @typedef {import("../documents.js").Documents} Documents */

/**
 * Longest wait for the lock, in milliseconds. A longer wait would be useless: the client gives up after the same time
 * (STORE_PATIENCE in deadline.js).
 */
const LOCK_PATIENCE_MS = 2000;
/** Milliseconds between two attempts to take the lock. A smaller number waits less, and costs more system calls. */
const LOCK_PAUSE_MS = 5;
/**
 * Age in milliseconds from which on a lock counts as left by a killed process. A change holds its lock for some
 * milliseconds. With a larger number, such a lock blocks the store longer. With a smaller number, a process that waits
 * for a slow disk loses its lock.
 */
const LOCK_MAX_AGE_MS = 10_000;
const PRIVATE = 0o600; // file mode: the owner reads and writes, nobody else does
/**
 * Flags to open a file for reading. With O_NOFOLLOW a symbolic link raises. With O_NONBLOCK a pipe without a writer
 * does not block the program.
 */
const PLAIN_FILE = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
/** Matches the text of FILE. The groups are the JSON of the documents without its last brace, and the checksum. */
const CHECKSUMMED = /^(.*),"checksum":"([0-9a-f]{64})"}$/s;

/**
 * Name of the space in which process ids are unique: this machine, and on Linux this container. A lock contains the
 * process id of its owner and this name.
 */
export const PID_SPACE = `${hostname()}${findPidNamespace()}`;

/**
 * Return a store in a file. The file and its folder are created at the first change. file.d.ts has an example.
 * @param {string} name path of the file; relative to the working directory of this call
 * @returns {import("../index.js").Store}
 */
export function fileStore(name) {
  const path = resolve(name); // a program may change its working directory later
  const replaceAll = (/** @type {Documents} */ documents) =>
    withLock(path, (holdsLock) => replaceFile(path, documents, true, holdsLock));
  return {
    holdsKeys: false, // JSON cannot contain a CryptoKey
    channel: undefined, // Node has no tabs
    pageStorage: createDeferredFiles(path),
    read: async (names) => {
      // A change is under way, or a killed process has left FILE.tmp. Taking the lock waits for the change, and removes
      // the file of the killed process.
      if (existsSync(`${path}.tmp`)) await withLock(path, () => {});
      return pickDocuments(readDocuments(path), names);
    },
    update: (names, work, { strict = false } = {}) =>
      withLock(path, (holdsLock) => {
        const all = readDocuments(path);
        const documents = pickDocuments(all, names);
        const result = work(documents);
        replaceFile(path, { ...all, ...pickDocuments(documents, names) }, strict, holdsLock);
        return result;
      }),
    clear: async (documents) => {
      readText(path); // raises for a file that must not be replaced, such as another user's
      try {
        await replaceAll(documents);
      } catch (error) {
        if (isNamed(error, "TimeoutError")) throw error; // another process has the lock
        // The disk may be full: it has no room for a second file. FILE is removed first, so that a withdrawal erases
        // the secret even if the new file cannot be written then.
        rmSync(path, { force: true });
        await replaceAll(documents);
      }
    },
    close: async () => {},
  };
}

/**
 * Return a storage of texts in files beside a store, in place of localStorage. A text is on the disk when `setItem`
 * returns.
 * @param {string} path
 * @returns {import("../index.js").PageStorage}
 */
function createDeferredFiles(path) {
  const prefix = `${basename(path)}.deferred-`;
  const fileOf = (/** @type {string} */ key) => join(dirname(path), prefix + encodeURIComponent(key));
  // As in localStorage, a caller reads `length`, and then `key(0)`, `key(1)` and so on. The folder is read for
  // `length`.
  /** @type {string[]} */
  let keys = [];
  return {
    get length() {
      const names = existsSync(dirname(path)) ? readdirSync(dirname(path)) : [];
      const deferred = names.filter((name) => name.startsWith(prefix));
      keys = deferred.map((name) => decodeURIComponent(name.slice(prefix.length)));
      return keys.length;
    },
    key: (i) => keys[i] ?? null,
    getItem: (key) => readText(fileOf(key)) ?? null,
    setItem: (key, text) => {
      const file = openSync(fileOf(key), "wx", PRIVATE);
      try {
        writeFileSync(file, text);
        fsyncSync(file);
      } finally {
        closeSync(file);
      }
      syncFolder(dirname(path));
    },
    removeItem: (key) => rmSync(fileOf(key), { force: true }),
  };
}

/**
 * Return the documents with some names. A document that does not exist is undefined.
 * @param {Documents} documents
 * @param {(keyof Documents)[]} names
 * @returns {Documents}
 */
function pickDocuments(documents, names) {
  return Object.fromEntries(names.map((name) => [name, documents[name]]));
}

/**
 * Read all documents. A store without a file has none.
 * @param {string} path
 * @returns {Documents}
 * @throws {DamagedStoreError} the text is not as `writeFile` writes it
 */
function readDocuments(path) {
  const text = readText(path);
  if (text === undefined) return {};
  const [, head, checksum] = CHECKSUMMED.exec(text) ?? [];
  if (!checksum || checksum !== computeChecksum(`${head}}`)) throw new DamagedStoreError();
  // JSON.stringify has written null for Infinity, such as the number of reports in an epoch without an end. No document
  // contains null.
  return JSON.parse(`${head}}`, (_, value) => (value === null ? Infinity : value));
}

/**
 * Return the text of a file, undefined if there is no file. Raise for a symbolic link, for another user's file, and for
 * anything but a plain file.
 * @param {string} path
 */
function readText(path) {
  let file;
  try {
    file = openSync(path, PLAIN_FILE);
  } catch (error) {
    if (isCode(error, "ENOENT")) return undefined;
    throw error;
  }
  try {
    const stats = fstatSync(file);
    const isOfUser = stats.uid === (process.getuid?.() ?? stats.uid); // Windows has no user ids
    if (isOfUser && stats.isFile()) return readFileSync(file, "utf8");
  } finally {
    closeSync(file);
  }
  throw new DOMException("the device's file must be a plain file of the user's own", "SecurityError");
}

/**
 * Return the SHA-256 of a text, in hex.
 * @param {string} text
 */
function computeChecksum(text) {
  return createHash("sha256").update(text).digest("hex");
}

/**
 * Replace the file of a store by a new file with these documents. Remove the file if no document is left.
 * @param {string} path
 * @param {Documents} documents
 * @param {boolean} isStrict whether to wait for the disk
 * @param {() => boolean} holdsLock returns whether this process still has the lock
 */
function replaceFile(path, documents, isStrict, holdsLock) {
  const isEmpty = Object.values(documents).every((document) => document === undefined);
  const newFile = `${path}.tmp`;
  try {
    if (!isEmpty) writeFile(newFile, JSON.stringify(documents), isStrict);
    // False if this process was suspended for so long that another one took the lock and changed FILE. The rename would
    // undo the change of the other process.
    if (!holdsLock()) throw new DOMException("the lock on the device's file was lost", "TimeoutError");
    if (isEmpty) rmSync(path, { force: true });
    else renameSync(newFile, path);
  } catch (error) {
    if (holdsLock()) rmSync(newFile, { force: true }); // without the lock, FILE.tmp is the file of another process
    throw error;
  }
  if (isStrict) syncFolder(dirname(path));
}

/**
 * Write a new file: a JSON object, and the checksum of its text as a further key at the end.
 * @param {string} path
 * @param {string} text a JSON object with at least one key
 * @param {boolean} isStrict whether to wait for the disk
 */
function writeFile(path, text, isStrict) {
  const file = openSync(path, "wx", PRIVATE); // x: raises if the file exists
  try {
    writeFileSync(file, `${text.slice(0, -1)},"checksum":"${computeChecksum(text)}"}`);
    if (isStrict) fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

/**
 * Wait until the names of the files in a folder are on the disk, if the system supports it. Otherwise a power loss may
 * undo the rename of a file whose bytes are on the disk.
 * @param {string} path
 */
function syncFolder(path) {
  try {
    const folder = openSync(path, "r", PRIVATE);
    try {
      fsyncSync(folder);
    } finally {
      closeSync(folder);
    }
  } catch {
    // Windows cannot open a folder.
  }
}

/**
 * Create a folder and its parents, unless they exist.
 *
 * Bad case: `mkdirSync` with `recursive` never returned for a path such as /proc/device. The parent exists and refuses
 * the folder with ENOENT, so Node tried to create the parent first, again and again.
 * @param {string} path
 */
function makeFolder(path) {
  if (existsSync(path)) return;
  const parent = dirname(path);
  if (parent !== path) makeFolder(parent); // the root is its own parent
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    if (!isCode(error, "EEXIST")) throw error; // another process has created the folder meanwhile
  }
}

/**
 * Run work under the lock of a store. Before the work, the file FILE.tmp that a killed process may have left is
 * removed.
 * @template T
 * @param {string} path
 * @param {(holdsLock: () => boolean) => T} work synchronous, so that the lock is held for a short time
 * @returns {Promise<T>}
 */
async function withLock(path, work) {
  const lock = `${path}.lock`;
  // The random part distinguishes the threads of a process, and two changes of a thread.
  const owner = `${process.pid} ${PID_SPACE} ${randomUUID()}`;
  makeFolder(dirname(path));
  const deadline = performance.now() + LOCK_PATIENCE_MS;
  while (!tryLock(lock, owner)) {
    if (performance.now() > deadline) {
      throw new DOMException("the device's file is locked", "TimeoutError");
    }
    await new Promise((resolve) => setTimeout(resolve, LOCK_PAUSE_MS));
  }
  const holdsLock = () => readOwner(lock) === owner;
  try {
    rmSync(`${path}.tmp`, { force: true });
    return work(holdsLock);
  } finally {
    if (holdsLock()) rmSync(lock, { force: true });
  }
}

/**
 * Take the lock if it is free, and return whether it was taken. If a killed process has left the lock, remove the lock,
 * so that the next attempt can take it.
 * @param {string} lock
 * @param {string} owner
 */
function tryLock(lock, owner) {
  let file;
  try {
    file = openSync(lock, "wx", PRIVATE);
  } catch (error) {
    if (!isCode(error, "EEXIST")) throw error;
    removeAbandoned(lock);
    return false;
  }
  try {
    writeFileSync(file, owner);
    return true;
  } catch (error) {
    // The disk is full. Nobody could see who owns the lock, and it would block the store for LOCK_MAX_AGE_MS.
    rmSync(lock, { force: true });
    throw error;
  } finally {
    closeSync(file);
  }
}

/**
 * Remove the lock of a process that has ended.
 *
 * The owner may change between the check and the removal:
 *
 *     process A    finds that the owner of the lock has ended
 *     process B    finds the same, and removes the lock
 *     process C    takes the lock
 *     process A    removes the lock, which belongs to process C now
 *
 * So process A renames the lock, reads its owner again, and gives it back if it is the lock of process C.
 * @param {string} lock
 */
function removeAbandoned(lock) {
  const owner = readOwner(lock);
  if (!isAbandoned(lock, owner)) return;
  const renamed = `${lock}.old`;
  try {
    renameSync(lock, renamed);
    if (readOwner(renamed) !== owner) linkSync(renamed, lock);
  } catch {
    // `renameSync` raises if another process has removed the lock. `linkSync` raises if another process has taken a new
    // lock before this one was given back. The owner of this one notices the loss before it renames FILE.tmp.
  } finally {
    rmSync(renamed, { force: true });
  }
}

/**
 * Return whether a lock was left by a process that has ended: its process id belongs to PID_SPACE and no process has it,
 * or the lock is older than LOCK_MAX_AGE_MS.
 *
 * The age decides in three cases, in which the process id does not help:
 *
 * - A container was killed and started again, and a process of the new one has the id of the owner.
 * - The power was lost, and the lock is empty.
 * - The owner is a process of another machine or container, which cannot be looked up.
 * @param {string} lock
 * @param {string} [owner]
 */
function isAbandoned(lock, owner = "") {
  const [pid, space] = owner.split(" ");
  try {
    const age = Math.abs(Date.now() - lstatSync(lock).mtimeMs); // in either direction: the clock may have been set
    return age > LOCK_MAX_AGE_MS || (space === PID_SPACE && isEnded(Number(pid)));
  } catch {
    return false; // the lock is gone
  }
}

/**
 * Return the owner of a lock, undefined if the lock is gone.
 * @param {string} lock
 */
function readOwner(lock) {
  try {
    return readFileSync(lock, "utf8");
  } catch {
    return undefined;
  }
}

/**
 * Return whether no process of PID_SPACE has a process id.
 * @param {number} pid NaN if the lock is damaged: the result is then false
 */
function isEnded(pid) {
  try {
    process.kill(pid, 0); // signal 0 only checks whether the process exists
    return false;
  } catch (error) {
    return isCode(error, "ESRCH"); // another user's process gives EPERM, and NaN gives another error
  }
}

/**
 * Return the name of the namespace of process ids, of which each container on Linux has its own. Return the empty text
 * if the system has none.
 */
function findPidNamespace() {
  try {
    return readlinkSync("/proc/self/ns/pid");
  } catch {
    return "";
  }
}

/**
 * Return whether an error has a name, such as "TimeoutError".
 * @param {unknown} error
 * @param {string} name
 */
function isNamed(error, name) {
  return error instanceof Error && error.name === name;
}

/**
 * Return whether an error of the system has a code, such as "ENOENT".
 * @param {unknown} error
 * @param {string} code
 */
function isCode(error, code) {
  return /** @type {{ code?: unknown }} */ (error)?.code === code;
}
