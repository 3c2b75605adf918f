// The store of a program on Node: the documents in one private file, which processes and threads may share.
//
// Each change holds a lock, a file beside the store, reads the store and replaces it by a whole new file. A
// program that is killed may leave the lock and `FILE.tmp`, the new file, which contains the secret. The next
// owner of the lock, or the next reader, removes it.

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

import { Damaged } from "./state.js";

/** @typedef {import("../documents.js").Documents} Documents */

const PATIENCE = 2000; // milliseconds of waiting for the lock
const PAUSE = 5; // milliseconds between two attempts
const LONGEST_HELD = 10_000; // milliseconds; work under the lock waits for nothing but the disk
const PRIVATE = 0o600;
const PLAIN_FILE = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK; // no link, no pipe
const CHECKSUMMED = /^(.*),"checksum":"([0-9a-f]{64})"}$/s;

/** Scope of process ids: this machine, and on Linux this container. */
export const PLACE = `${hostname()}${pidNamespace()}`;

/**
 * Return a store in a file. The file and its folder are created at the first change.
 * @param {string} name
 * @returns {import("../index.js").Store}
 */
export function fileStore(name) {
  const path = resolve(name); // a program may change its working directory
  const fill = (/** @type {Documents} */ documents) =>
    locked(path, (holds) => replace(path, documents, true, holds));
  return {
    holdsKeys: false,
    channel: undefined,
    pageStorage: filesBeside(path),
    read: async (names) => {
      if (existsSync(`${path}.tmp`)) await locked(path, () => {});
      return pick(readDocuments(path), names);
    },
    update: (names, work, { strict = false } = {}) =>
      locked(path, (holds) => {
        const whole = readDocuments(path);
        const documents = pick(whole, names);
        const result = work(documents);
        replace(path, { ...whole, ...pick(documents, names) }, strict, holds);
        return result;
      }),
    clear: async (documents) => {
      textOf(path); // raises for a file that must not be replaced, such as another user's
      try {
        await fill(documents);
      } catch (error) {
        if (isNamed(error, "TimeoutError")) throw error; // another process has the lock
        rmSync(path, { force: true }); // a full disk has no room for a second file
        await fill(documents);
      }
    },
    close: async () => {},
  };
}

/**
 * Return a storage of texts in files beside a store, which are written synchronously.
 * @param {string} path
 * @returns {import("../index.js").PageStorage}
 */
function filesBeside(path) {
  const prefix = `${basename(path)}.deferred-`;
  const fileOf = (/** @type {string} */ key) => join(dirname(path), prefix + encodeURIComponent(key));
  /** @type {string[]} keys of the last listing */
  let keys = [];
  return {
    get length() {
      const names = existsSync(dirname(path)) ? readdirSync(dirname(path)) : [];
      const own = names.filter((name) => name.startsWith(prefix));
      keys = own.map((name) => decodeURIComponent(name.slice(prefix.length)));
      return keys.length;
    },
    key: (i) => keys[i] ?? null,
    getItem: (key) => textOf(fileOf(key)) ?? null,
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
 * @param {Documents} whole
 * @param {(keyof Documents)[]} names
 * @returns {Documents}
 */
function pick(whole, names) {
  return Object.fromEntries(names.map((name) => [name, whole[name]]));
}

/**
 * @param {string} path
 * @returns {Documents}
 */
function readDocuments(path) {
  const text = textOf(path);
  if (text === undefined) return {};
  const [, head, checksum] = CHECKSUMMED.exec(text) ?? [];
  if (!checksum || checksum !== checksumOf(`${head}}`)) throw new Damaged();
  return JSON.parse(`${head}}`, (_, value) => (value === null ? Infinity : value)); // as JSON writes it
}

/**
 * Return the text of a file, undefined if there is no file. A link, another user's file and anything but a
 * plain file raise: their secret would be another user's, or would exist twice.
 * @param {string} path
 */
function textOf(path) {
  let file;
  try {
    file = openSync(path, PLAIN_FILE);
  } catch (error) {
    if (isCode(error, "ENOENT")) return undefined;
    throw error;
  }
  try {
    const stats = fstatSync(file);
    const isOwn = stats.uid === (process.getuid?.() ?? stats.uid);
    if (isOwn && stats.isFile()) return readFileSync(file, "utf8");
  } finally {
    closeSync(file);
  }
  throw new DOMException("the device's file must be a plain file of the user's own", "SecurityError");
}

/** @param {string} text */
function checksumOf(text) {
  return createHash("sha256").update(text).digest("hex");
}

/**
 * Replace the file of a store by a whole new file.
 * @param {string} path
 * @param {Documents} documents
 * @param {boolean} isStrict whether to wait for the disk
 * @param {() => boolean} holds returns whether this process still has the lock
 */
function replace(path, documents, isStrict, holds) {
  const isEmpty = Object.values(documents).every((document) => document === undefined);
  const beside = `${path}.tmp`;
  try {
    if (!isEmpty) write(beside, JSON.stringify(documents), isStrict);
    if (!holds()) throw new DOMException("the lock on the device's file was lost", "TimeoutError");
    if (isEmpty) rmSync(path, { force: true });
    else renameSync(beside, path);
  } catch (error) {
    if (holds()) rmSync(beside, { force: true });
    throw error;
  }
  if (isStrict) syncFolder(dirname(path));
}

/**
 * @param {string} path
 * @param {string} text
 * @param {boolean} isStrict
 */
function write(path, text, isStrict) {
  const file = openSync(path, "wx", PRIVATE);
  try {
    writeFileSync(file, `${text.slice(0, -1)},"checksum":"${checksumOf(text)}"}`);
    if (isStrict) fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

/**
 * Wait until the names of a folder are on the disk, if the system supports it.
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
 * Run under the lock, after the remains of a killed process are removed.
 * @template T
 * @param {string} path
 * @param {(holds: () => boolean) => T} work
 * @returns {Promise<T>}
 */
async function locked(path, work) {
  const lock = `${path}.lock`;
  const owner = `${process.pid} ${PLACE} ${randomUUID()}`;
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  const deadline = performance.now() + PATIENCE;
  while (!taken(lock, owner)) {
    if (performance.now() > deadline) {
      throw new DOMException("the device's file is locked", "TimeoutError");
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
  const holds = () => ownerOf(lock) === owner;
  try {
    rmSync(`${path}.tmp`, { force: true });
    return work(holds);
  } finally {
    if (holds()) rmSync(lock, { force: true });
  }
}

/**
 * Take the lock if it is free. Remove the lock of a killed process, for the next attempt.
 * @param {string} lock
 * @param {string} owner
 */
function taken(lock, owner) {
  let file;
  try {
    file = openSync(lock, "wx", PRIVATE);
  } catch (error) {
    if (!isCode(error, "EEXIST")) throw error;
    clearAbandoned(lock);
    return false;
  }
  try {
    writeFileSync(file, owner);
    return true;
  } catch (error) {
    rmSync(lock, { force: true }); // on a full disk the lock would have no owner
    throw error;
  } finally {
    closeSync(file);
  }
}

/** @param {string} lock */
function clearAbandoned(lock) {
  const owner = ownerOf(lock);
  if (!isAbandoned(lock, owner)) return;
  const away = `${lock}.old`;
  try {
    renameSync(lock, away);
    if (ownerOf(away) !== owner) linkSync(away, lock); // it is the lock of another process by now: return it
  } catch {
    // another process has removed or taken the lock first
  } finally {
    rmSync(away, { force: true });
  }
}

/**
 * Return whether the process of a lock has ended, or whether the lock is too old for any work. Age is needed
 * because a restarted container has the process ids of the killed one, and a power loss may leave the lock
 * empty.
 * @param {string} lock
 * @param {string} [owner]
 */
function isAbandoned(lock, owner = "") {
  const [pid, place] = owner.split(" ");
  try {
    const age = Math.abs(Date.now() - lstatSync(lock).mtimeMs); // the clock may have been set
    return age > LONGEST_HELD || (place === PLACE && isEnded(Number(pid)));
  } catch {
    return false; // the lock is gone
  }
}

/** @param {string} lock */
function ownerOf(lock) {
  try {
    return readFileSync(lock, "utf8");
  } catch {
    return undefined;
  }
}

/** @param {number} pid */
function isEnded(pid) {
  try {
    process.kill(pid, 0);
    return false;
  } catch (error) {
    return isCode(error, "ESRCH"); // a text that is no number gives another error
  }
}

/** Return the name of the namespace of process ids, empty where the system has none. */
function pidNamespace() {
  try {
    return readlinkSync("/proc/self/ns/pid");
  } catch {
    return "";
  }
}

/**
 * @param {unknown} error
 * @param {string} name
 */
function isNamed(error, name) {
  return error instanceof Error && error.name === name;
}

/**
 * @param {unknown} error
 * @param {string} code
 */
function isCode(error, code) {
  return /** @type {{ code?: unknown }} */ (error)?.code === code;
}
