// A limit to how long anybody waits for a store: another tab may keep it, or the browser may.

const LONGEST = 86_400; // no timer takes more than 24 days

/** Seconds that anybody waits for a store. */
export const PATIENCE = 2;

/**
 * Return what an action comes to; TimeoutError once that takes too long. The action itself goes on.
 * @template T
 * @param {Promise<T>} action
 * @param {number} [seconds]
 * @returns {Promise<T>}
 */
export function within(action, seconds = PATIENCE) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const late = new Promise((_, reject) => {
    const say = () => reject(new DOMException("", "TimeoutError"));
    if (seconds < LONGEST) timer = setTimeout(say, 1000 * seconds);
  });
  const first = /** @type {Promise<T>} */ (Promise.race([action, late]));
  return first.finally(() => clearTimeout(timer));
}
