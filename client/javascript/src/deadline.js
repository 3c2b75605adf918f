// Deadlines of asynchronous calls. A browser, another tab or a disk may block a store for any time. A call of the
// client must return all the same, so it waits for the store until a deadline.

/**
 * Seconds from which on a deadline counts as none. A timer of 2^31 ms (24.8 days) or more would end at once, so such a
 * deadline must not start a timer. No page waits for a day, so a day is limit enough.
 */
const LONGEST_TIMER = 86_400;

/**
 * Longest wait for one call of a store, in seconds. With a larger number, a page waits longer for a store that hangs.
 * With a smaller number, more calls of a slow store count as failed.
 */
export const STORE_PATIENCE = 2;

/**
 * Return the result of an action, or reject with a TimeoutError after some seconds. The action itself continues after
 * the deadline and may still change the store, because nothing can abort a transaction that hangs. Its result is
 * ignored.
 * @template T
 * @param {Promise<T>} action
 * @param {number} [seconds] a day or more means no deadline
 * @returns {Promise<T>}
 */
export function withDeadline(action, seconds = STORE_PATIENCE) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const timeout = new Promise((_, reject) => {
    const fail = () => reject(new DOMException("", "TimeoutError"));
    if (seconds < LONGEST_TIMER) timer = setTimeout(fail, 1000 * seconds);
  });
  const first = /** @type {Promise<T>} */ (Promise.race([action, timeout]));
  return first.finally(() => clearTimeout(timer));
}
