// The device's documents in one private file, for programs on Node. Several processes and threads
// may share it: each change holds a lock beside it, reads the file, and puts a whole new file in its
// place. A program that is killed may leave the lock and the new file, which holds the secret too:
// `FILE.tmp`. Whoever holds the lock next, or looks, removes it.

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
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { hostname } from "node:os";
import { dirname, resolve } from "node:path";

import { Damaged } from "./state.js";

/** @typedef {import("../documents.js").Documents} Documents */

const PATIENCE = 2000;
const PAUSE = 5;
const LONGEST_HELD = 10_000; // work under the lock does not wait for anything but the disk
const PRIVATE = 0o600;
const PLAINLY = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK; // no link, no wait
const SEALED = /^(.*),"checksum":"([0-9a-f]{64})"}$/s;

/** Where a process's number means something: this machine, and on Linux this container. */
export const PLACE = `${hostname()}${numbering()}`;

/**
 * Name a file; it is created, with its folder, when it is first needed.
 * @param {string} name
 * @returns {import("../index.js").Store}
 */
export function fileStore(name) {
  const path = resolve(name); // a program may change its folder
  const fill = (/** @type {Documents} */ documents) =>
    locked(path, (holds) => replace(path, documents, true, holds));
  return {
    holdsKeys: false,
    channel: undefined,
    read: async (names) => {
      if (existsSync(`${path}.tmp`)) await locked(path, () => {});
      return chosen(readDocuments(path), names);
    },
    update: (names, work, { strict = false } = {}) =>
      locked(path, (holds) => {
        const whole = readDocuments(path);
        const documents = chosen(whole, names);
        const result = work(documents);
        replace(path, { ...whole, ...chosen(documents, names) }, strict, holds);
        return result;
      }),
    clear: async (documents) => {
      textOf(path); // what is not the user's own is not replaced
      try {
        await fill(documents);
      } catch (error) {
        if (isNamed(error, "TimeoutError")) throw error; // somebody holds the lock
        rmSync(path, { force: true }); // a full disk has room for nothing else
        await fill(documents);
      }
    },
    close: async () => {},
  };
}

/**
 * @param {Documents} whole
 * @param {(keyof Documents)[]} names
 * @returns {Documents}
 */
function chosen(whole, names) {
  return Object.fromEntries(names.map((name) => [name, whole[name]]));
}

/**
 * @param {string} path
 * @returns {Documents}
 */
function readDocuments(path) {
  const text = textOf(path);
  if (text === undefined) return {};
  const [, head, checksum] = SEALED.exec(text) ?? [];
  if (!checksum || checksum !== checksumOf(`${head}}`)) throw new Damaged();
  return JSON.parse(`${head}}`, (_, value) => (value === null ? Infinity : value)); // as JSON writes it
}

/**
 * Return what a file of the user's own holds, undefined if there is none; it raises for a link, for
 * another user's file and for what is no plain file: its secret would be another's, or be kept twice.
 * @param {string} path
 */
function textOf(path) {
  let file;
  try {
    file = openSync(path, PLAINLY);
  } catch (error) {
    if (isCode(error, "ENOENT")) return undefined;
    throw error;
  }
  try {
    const found = fstatSync(file);
    const isOwn = found.uid === (process.getuid?.() ?? found.uid);
    if (isOwn && found.isFile()) return readFileSync(file, "utf8");
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
 * Put a whole file in the place of another one.
 * @param {string} path
 * @param {Documents} documents
 * @param {boolean} isStrict whether to wait for the disk
 * @param {() => boolean} holds tells whether the lock is held still
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
  if (isStrict) settle(dirname(path));
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
 * Wait until a folder's names are on the disk, where the system has a way to.
 * @param {string} path
 */
function settle(path) {
  try {
    const folder = openSync(path, "r", PRIVATE);
    try {
      fsyncSync(folder);
    } finally {
      closeSync(folder);
    }
  } catch {
    // Windows opens no folder
  }
}

/**
 * Run while no other process or thread does, with nothing left of one that was killed.
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
 * Take the lock, or clear one away that a killed process has left.
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
    rmSync(lock, { force: true }); // on a full disk it would be nobody's
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
    if (ownerOf(away) !== owner) linkSync(away, lock); // another process was faster: give it back
  } catch {
    // another process was faster
  } finally {
    rmSync(away, { force: true });
  }
}

/**
 * Return whether a lock's process has ended, or the lock is too old for one that works: a container
 * that is started anew has the numbers of the one that was killed, and a power loss may leave the
 * file empty.
 * @param {string} lock
 * @param {string} [owner]
 */
function isAbandoned(lock, owner = "") {
  const [pid, place] = owner.split(" ");
  try {
    const age = Math.abs(Date.now() - lstatSync(lock).mtimeMs); // the clock may have been set
    return age > LONGEST_HELD || (place === PLACE && isEnded(Number(pid)));
  } catch {
    return false; // it has gone
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
    return isCode(error, "ESRCH"); // not if it is no number
  }
}

/** Name what numbers the processes of a container apart from another's, where the system tells. */
function numbering() {
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
