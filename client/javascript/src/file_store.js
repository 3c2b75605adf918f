// The store of a program on Node: the documents of a device in one private file.
//
//     FILE               the documents as JSON, with a SHA-256 of the text as checksum
//     FILE.lock          exists while a process changes FILE; contains the name of the owner
//     FILE.tmp           the new file, before it replaces FILE
//     FILE.deferred-*    deferred events, one text each (deferred_events.js)
//
// Several processes, threads and containers may share the file. A change takes the lock, reads FILE, writes FILE.tmp
// and renames it to FILE. The rename is atomic, so a reader without the lock sees the old documents or the new ones.
//
// Bad cases:
//
// - A process is killed during a change: it leaves the lock, and FILE.tmp with the secret in it. The next process
//   removes a lock whose owner has ended, and every lock that is older than 10 s. The next change or read then removes
//   FILE.tmp.
// - A process is suspended for longer than that, and loses its lock. It looks at the lock again before the rename.
// - The disk is full: FILE stays as it is.
// - FILE is a symbolic link, another user's file or a pipe: every operation raises.

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

/** Longest wait for the lock, in milliseconds. The client gives up after the same time (deadline.js). */
const LOCK_PATIENCE_MS = 2000;
/** Milliseconds between two attempts to take the lock. A smaller number waits less, and costs more system calls. */
const LOCK_PAUSE_MS = 5;
/** Age of a lock in milliseconds from which on it is abandoned. Work under the lock waits for the disk only. */
const LOCK_MAX_AGE_MS = 10_000;
const PRIVATE = 0o600; // file mode: the owner reads and writes, nobody else does
// A link raises an error, and a pipe without a writer does not block the program.
const PLAIN_FILE = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
const CHECKSUMMED = /^(.*),"checksum":"([0-9a-f]{64})"}$/s; // the text of a store without its last brace, and its checksum

/** Name of the set in which a process id is unique: this machine, and on Linux this container. */
export const PLACE = `${hostname()}${findPidNamespace()}`;

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
      // A change is under way, or a killed process has left the file: the next owner of the lock removes it.
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
        // A full disk has no room for a second file. Erasing comes before keeping the documents whole.
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
  /** @type {string[]} keys as the last reading of `length` has found them, for `key` */
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
 * Return some of the documents.
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
  // JSON writes Infinity as null, and no document contains null.
  return JSON.parse(`${head}}`, (_, value) => (value === null ? Infinity : value));
}

/**
 * Return the text of a file, undefined if there is no file. A symbolic link, another user's file and anything but a
 * plain file raise: the secret in it would be another user's, or would exist twice.
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
 * Replace the file of a store by a whole new file; remove it if no document is left.
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
    // The process was suspended for so long that another one took the lock. Its change must not be undone.
    if (!holdsLock()) throw new DOMException("the lock on the device's file was lost", "TimeoutError");
    if (isEmpty) rmSync(path, { force: true });
    else renameSync(newFile, path);
  } catch (error) {
    if (holdsLock()) rmSync(newFile, { force: true }); // else it is the new file of another process
    throw error;
  }
  if (isStrict) syncFolder(dirname(path));
}

/**
 * Write a new file: a JSON object, with the checksum of its text as one key more.
 * @param {string} path
 * @param {string} text
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
 * Wait until the names in a folder are on the disk, if the system supports it. A rename may be lost otherwise.
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
    // Windows cannot open a folder
  }
}

/**
 * Run work under the lock of a store, after the new file of a killed process is removed.
 * @template T
 * @param {string} path
 * @param {(holdsLock: () => boolean) => T} work synchronous, so that the lock is held for a short time
 * @returns {Promise<T>}
 */
async function withLock(path, work) {
  const lock = `${path}.lock`;
  const owner = `${process.pid} ${PLACE} ${randomUUID()}`; // threads of a process share its id
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
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
 * Take the lock if it is free, and return whether it was taken. The lock of a killed process is removed for the next
 * attempt.
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
    rmSync(lock, { force: true }); // the disk is full: a lock without an owner would last for LOCK_MAX_AGE_MS
    throw error;
  } finally {
    closeSync(file);
  }
}

/**
 * Remove the lock of a process that has ended. Two processes may do this at once, and a third one may take the lock
 * between the check and the removal. So the lock is renamed first, and given back if its owner has changed.
 * @param {string} lock
 */
function removeAbandoned(lock) {
  const owner = readOwner(lock);
  if (!isAbandoned(lock, owner)) return;
  const away = `${lock}.old`;
  try {
    renameSync(lock, away);
    if (readOwner(away) !== owner) linkSync(away, lock);
  } catch {
    // The lock is gone already, or another process has taken a new one before this one could be given back.
  } finally {
    rmSync(away, { force: true });
  }
}

/**
 * Return whether the process of a lock has ended, or whether the lock is too old for any work.
 *
 * The age is needed in three cases: a restarted container has the process ids of the killed one, a power loss may
 * leave the lock empty, and processes of another machine or container cannot be looked up.
 * @param {string} lock
 * @param {string} [owner]
 */
function isAbandoned(lock, owner = "") {
  const [pid, place] = owner.split(" ");
  try {
    const age = Math.abs(Date.now() - lstatSync(lock).mtimeMs); // in either direction: the clock may have been set
    return age > LOCK_MAX_AGE_MS || (place === PLACE && isEnded(Number(pid)));
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
 * Return whether no process has an id.
 * @param {number} pid NaN for a damaged lock, which is not ended
 */
function isEnded(pid) {
  try {
    process.kill(pid, 0); // signal 0 only checks whether the process exists
    return false;
  } catch (error) {
    return isCode(error, "ESRCH"); // another user's process gives EPERM, and NaN gives another error
  }
}

/** Return the name of the namespace of process ids, the empty text if the system has none. */
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
