// Tabs of one device: one tab sends at a time, and all tabs receive a withdrawal.

const LOCK_MS = 2000; // longest wait of a withdrawal for a tab that sends

/**
 * @typedef {object} Tabs
 * @property {<T>(action: () => Promise<T>, busy: T) => Promise<T>} exclusively runs an action, or returns
 *   `busy` if a tab runs one
 * @property {(action: () => Promise<unknown>) => Promise<boolean>} afterOthers runs an action after those of
 *   other tabs; false if another tab did not end in time, and the action ran beside it
 * @property {(metric?: string) => void} notify sends a refused metric, or without one the withdrawal, to the
 *   other tabs
 * @property {() => void} close
 */

/**
 * Connect the tabs that share a channel. Without a channel there are no other tabs.
 * @param {string | undefined} channel
 * @param {(metric?: string) => void} onNotice
 * @returns {Tabs}
 */
export function tabsOf(channel, onNotice) {
  const name = `rappor ${channel}`;
  const locks = channel === undefined ? undefined : globalThis.navigator?.locks;
  /** @type {BroadcastChannel | undefined} */
  let broadcast;
  try {
    if (channel !== undefined) broadcast = new BroadcastChannel(name);
  } catch {
    // Firefox raises where storage is blocked. There is nothing to share then.
  }
  if (broadcast) broadcast.onmessage = ({ data }) => onNotice(data);
  let underWay = 0;
  return {
    async exclusively(action, busy) {
      if (underWay) return busy;
      underWay += 1;
      try {
        if (!locks) return await action();
        return await locks.request(name, { ifAvailable: true }, (lock) => (lock ? action() : busy));
      } finally {
        underWay -= 1;
      }
    },
    async afterOthers(action) {
      const acted = async () => {
        await action();
        return true;
      };
      if (!locks) return acted();
      const waiting = new AbortController();
      setTimeout(() => waiting.abort(), LOCK_MS);
      const { signal } = waiting;
      return locks.request(name, { signal }, acted).catch(async () => !(await acted()));
    },
    notify: (metric) => broadcast?.postMessage(metric),
    close: () => broadcast?.close(),
  };
}
