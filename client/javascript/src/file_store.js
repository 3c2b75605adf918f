// The device's documents in one private file, for programs on Node. Several processes may share it:
// each change reads the file, holds a lock beside it, and puts a whole new file in its place.

import {
  closeSync,
  fsyncSync,
  linkSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname } from "node:path";

import { Damaged } from "./device.js";

/** @typedef {import("./device.js").Documents} Documents */

const PATIENCE = 2000;
const PAUSE = 5;
const PRIVATE = 0o600;

/**
 * Name a file; it is created, with its folder, when it is first needed.
 * @param {string} path
 * @returns {import("../index.js").Store}
 */
export function fileStore(path) {
  return {
    holdsKeys: false,
    channel: undefined,
    read: async (names) => chosen(readDocuments(path), names),
    update: (names, work, { strict = false } = {}) =>
      locked(path, () => {
        const whole = readDocuments(path);
        const documents = chosen(whole, names);
        const result = work(documents);
        replace(path, { ...whole, ...documents }, strict);
        return result;
      }),
    clear: (documents) => locked(path, () => replace(path, documents, true)),
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
  let text;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    if (isCode(error, "ENOENT")) return {};
    throw error;
  }
  try {
    return JSON.parse(text, (_, value) => (value === null ? Infinity : value)); // as JSON writes it
  } catch {
    throw new Damaged("the device's file is damaged");
  }
}

/**
 * Put a whole file in the place of another one.
 * @param {string} path
 * @param {Documents} documents
 * @param {boolean} isStrict whether to wait for the disk
 */
function replace(path, documents, isStrict) {
  if (Object.values(documents).every((document) => document === undefined)) {
    rmSync(path, { force: true });
    return;
  }
  const beside = `${path}.${process.pid}.tmp`;
  const file = openSync(beside, "w", PRIVATE);
  try {
    writeFileSync(file, JSON.stringify(documents));
    if (isStrict) fsyncSync(file);
  } finally {
    closeSync(file);
  }
  renameSync(beside, path);
}

/**
 * Run while no other process does.
 * @template T
 * @param {string} path
 * @param {() => T} work
 * @returns {Promise<T>}
 */
async function locked(path, work) {
  const lock = `${path}.lock`;
  const mine = `${lock}.${process.pid}`;
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  const deadline = Date.now() + PATIENCE;
  while (!taken(lock, mine)) {
    if (Date.now() > deadline) throw new DOMException("the device's file is locked", "TimeoutError");
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
  try {
    return work();
  } finally {
    rmSync(lock, { force: true });
  }
}

/**
 * Take the lock, or clear one away that a killed process has left.
 * @param {string} lock
 * @param {string} mine
 */
function taken(lock, mine) {
  writeFileSync(mine, String(process.pid), { mode: PRIVATE });
  try {
    linkSync(mine, lock); // it appears with its content, or not at all
    return true;
  } catch (error) {
    if (!isCode(error, "EEXIST")) throw error;
    clearAbandoned(lock, mine);
    return false;
  } finally {
    rmSync(mine, { force: true });
  }
}

/**
 * @param {string} lock
 * @param {string} mine
 */
function clearAbandoned(lock, mine) {
  const owner = ownerOf(lock);
  if (!owner || isAlive(owner)) return;
  const away = `${mine}.away`;
  try {
    renameSync(lock, away);
    if (ownerOf(away) !== owner) linkSync(away, lock); // another process was faster: give it back
  } catch {
    // another process was faster
  } finally {
    rmSync(away, { force: true });
  }
}

/** @param {string} lock */
function ownerOf(lock) {
  try {
    return Number(readFileSync(lock, "utf8"));
  } catch {
    return 0;
  }
}

/** @param {number} pid */
function isAlive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return !isCode(error, "ESRCH");
  }
}

/**
 * @param {unknown} error
 * @param {string} code
 */
function isCode(error, code) {
  return /** @type {{ code?: unknown }} */ (error)?.code === code;
}
