// A limit to how long anybody waits for a store: another tab may keep it, or the browser may.

const LONGEST = 86_400; // no timer takes more than 24 days

/**
 * Return what an action comes to; TimeoutError once that takes too long. The action itself goes on.
 * @template T
 * @param {number} seconds
 * @param {Promise<T>} action
 * @returns {Promise<T>}
 */
export async function within(seconds, action) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const late = new Promise((_, reject) => {
    const say = () => reject(new DOMException("", "TimeoutError"));
    if (seconds < LONGEST) timer = setTimeout(say, 1000 * seconds);
  });
  try {
    return /** @type {T} */ (await Promise.race([action, late]));
  } finally {
    clearTimeout(timer);
  }
}
