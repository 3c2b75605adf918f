// Deadlines of asynchronous calls. Another tab or the browser may block a store for any time.

const LONGEST = 86_400; // seconds; a timer of more than 24 days ends at once

/** Longest wait for a store, in seconds. */
export const PATIENCE = 2;

/**
 * Return the result of an action; TimeoutError after some seconds. The action itself continues.
 * @template T
 * @param {Promise<T>} action
 * @param {number} [seconds]
 * @returns {Promise<T>}
 */
export function within(action, seconds = PATIENCE) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const timeout = new Promise((_, reject) => {
    const fail = () => reject(new DOMException("", "TimeoutError"));
    if (seconds < LONGEST) timer = setTimeout(fail, 1000 * seconds);
  });
  const first = /** @type {Promise<T>} */ (Promise.race([action, timeout]));
  return first.finally(() => clearTimeout(timer));
}
