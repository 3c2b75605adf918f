// Coordination of the tabs of one device. Tabs that share a store are one device.
//
// - A Web Lock lets one tab send at a time. Browsers before 2022 have no Web Locks: two tabs may then try to send at
//   once, and the claims of the uploader keep them from sending the same upload.
// - A BroadcastChannel tells the other tabs that a metric was refused, or that consent was withdrawn.

/** Longest wait of a withdrawal for a tab that sends, in milliseconds: a part of the five seconds of a withdrawal. */
const LOCK_MS = 2000;

/**
 * @typedef {object} Tabs
 * @property {<T>(action: () => Promise<T>, busy: T) => Promise<T>} exclusively runs an action while no other one
 *   runs in this tab or another tab, or returns `busy`
 * @property {(action: () => Promise<unknown>) => Promise<boolean>} afterOthers runs an action after the action of
 *   another tab; returns false if that tab did not end in time, and the action ran beside it
 * @property {(metric?: string) => void} notify sends the name of a refused metric to the other tabs, or undefined
 *   for a withdrawal
 * @property {() => void} close
 */

/**
 * Connect this tab with the tabs that share a channel.
 * @param {string | undefined} channel name of the store; undefined if there are no tabs, as in Node
 * @param {(metric?: string) => void} onNotice receives what another tab sent by `notify`
 * @returns {Tabs}
 */
export function connectTabs(channel, onNotice) {
  const name = `rappor ${channel}`;
  const locks = channel === undefined ? undefined : globalThis.navigator?.locks;
  /** @type {BroadcastChannel | undefined} */
  let broadcast;
  try {
    if (channel !== undefined) broadcast = new BroadcastChannel(name);
  } catch {
    // Firefox raises if storage is blocked. No tab has a store then, and there is nothing to tell.
  }
  if (broadcast) broadcast.onmessage = ({ data }) => onNotice(data);
  let underWay = 0; // actions of this tab: without Web Locks, or while the lock is requested
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
      const runAction = async () => {
        await action();
        return true;
      };
      if (!locks) return runAction();
      const waiting = new AbortController();
      setTimeout(() => waiting.abort(), LOCK_MS);
      const { signal } = waiting;
      // An aborted request means that another tab holds the lock for too long. The action runs all the same.
      return locks.request(name, { signal }, runAction).catch(async () => !(await runAction()));
    },
    notify: (metric) => broadcast?.postMessage(metric),
    close: () => broadcast?.close(),
  };
}
