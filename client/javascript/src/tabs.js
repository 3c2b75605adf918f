// Several tabs of one device: one of them sends at a time, and all hear of a withdrawal.

const PATIENCE = 2000;

/**
 * @typedef {object} Tabs
 * @property {<T>(action: () => Promise<T>, busy: T) => Promise<T>} alone runs an action unless
 *   another tab runs one
 * @property {(action: () => Promise<unknown>) => Promise<boolean>} whenQuiet runs an action once no
 *   tab runs one; false if it did not want to wait any longer for that
 * @property {() => void} tell says to the other tabs that consent was withdrawn
 * @property {() => void} close
 */

/**
 * Return what joins the tabs that share a channel; one tab, or none, is always alone.
 * @param {string | undefined} channel
 * @param {() => void} onWithdrawn
 * @returns {Tabs}
 */
export function tabsOf(channel, onWithdrawn) {
  const name = `rappor ${channel}`;
  const locks = channel === undefined ? undefined : globalThis.navigator?.locks;
  const radio = channel !== undefined && globalThis.BroadcastChannel && new BroadcastChannel(name);
  if (radio) radio.onmessage = onWithdrawn;
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
      if (!locks) {
        await action();
        return true;
      }
      let isAlone = false;
      const alone = () => {
        isAlone = true;
        return action();
      };
      try {
        await locks.request(name, { signal: /** @type {any} */ (AbortSignal).timeout(PATIENCE) }, alone);
      } catch (error) {
        if (isAlone) throw error;
        await action();
      }
      return isAlone;
    },
    tell: () => radio && radio.postMessage("withdrawn"),
    close: () => radio && radio.close(),
  };
}
