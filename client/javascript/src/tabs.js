// Several tabs of one device: one of them sends at a time, and all hear of a withdrawal.

const PATIENCE = 2000;

/**
 * @typedef {object} Tabs
 * @property {<T>(action: () => Promise<T>, busy: T) => Promise<T>} alone runs an action unless
 *   another tab runs one
 * @property {(action: () => Promise<unknown>) => Promise<boolean>} whenQuiet runs an action once no
 *   tab runs one; false if it did not want to wait any longer for that
 * @property {(metric?: string) => void} tell says to the other tabs that consent was withdrawn, or
 *   that a metric is refused
 * @property {() => void} close
 */

/**
 * Return what joins the tabs that share a channel; one tab, or none, is always alone.
 * @param {string | undefined} channel
 * @param {(metric?: string) => void} onTold
 * @returns {Tabs}
 */
export function tabsOf(channel, onTold) {
  const name = `rappor ${channel}`;
  const locks = channel === undefined ? undefined : globalThis.navigator?.locks;
  /** @type {BroadcastChannel | undefined} */
  let radio;
  try {
    if (channel !== undefined) radio = new BroadcastChannel(name);
  } catch {
    // storage is blocked: there is nothing to share
  }
  if (radio) radio.onmessage = ({ data }) => onTold(data);
  let underWay = 0;
  return {
    async alone(action, busy) {
      if (underWay) return busy;
      underWay += 1;
      try {
        if (!locks) return await action();
        return await locks.request(name, { ifAvailable: true }, (lock) => (lock ? action() : busy));
      } finally {
        underWay -= 1;
      }
    },
    async whenQuiet(action) {
      const acted = async () => {
        await action();
        return true;
      };
      if (!locks) return acted();
      const waiting = new AbortController();
      setTimeout(() => waiting.abort(), PATIENCE);
      const { signal } = waiting;
      return locks.request(name, { signal }, acted).catch(async () => !(await acted()));
    },
    tell: (metric) => radio?.postMessage(metric),
    close: () => radio?.close(),
  };
}
