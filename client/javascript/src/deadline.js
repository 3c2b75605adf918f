// Deadlines of asynchronous calls. A browser or another tab may block a store for any time, and a call of the
// client must return all the same.

const LONGEST_TIMER = 86_400; // seconds; a longer limit is none, and a timer of more than 24 days ends at once

/** Longest wait for one call of a store, in seconds. A larger value would hold up the page for longer. */
export const PATIENCE = 2;

/**
 * Return the result of an action, or reject with a TimeoutError after some seconds. The action itself continues
 * after the deadline, because nothing can abort a transaction that hangs.
 * @template T
 * @param {Promise<T>} action
 * @param {number} [seconds] a day or more means no deadline
 * @returns {Promise<T>}
 */
export function withDeadline(action, seconds = PATIENCE) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const timeout = new Promise((_, reject) => {
    const fail = () => reject(new DOMException("", "TimeoutError"));
    if (seconds < LONGEST_TIMER) timer = setTimeout(fail, 1000 * seconds);
  });
  const first = /** @type {Promise<T>} */ (Promise.race([action, timeout]));
  return first.finally(() => clearTimeout(timer));
}
