// Coordination of the tabs of one device. All tabs that share a store are one device.
//
// Three things need coordination:
//
//     case                              means                what happens
//     two tabs want to send             a Web Lock           one tab makes a step of sending, the other tries again
//     consent is withdrawn while        the same Web Lock    the withdrawal waits for the other tab, LOCK_PATIENCE_MS
//     another tab sends                                      at most, and erases the store then
//     consent is withdrawn, or a        a BroadcastChannel   the other tabs get a notice and forget their secret, or
//     metric is refused                                      the events of the metric
//
// Browsers before 2022 have no Web Locks. Two tabs may then send at once, but not the same upload: each tab writes
// into the store which upload it is sending (a claim, backoff.js). A withdrawal does not wait for other tabs there.

/**
 * Longest wait of a withdrawal for another tab that sends, in milliseconds. With a larger number, more requests end
 * before the erasure. A withdrawal promises to return within five seconds, and the erasure needs some of them.
 */
const LOCK_PATIENCE_MS = 2000;

/**
 * @typedef {object} Tabs
 * @property {<T>(action: () => Promise<T>, busy: T) => Promise<T>} exclusively runs an action and returns its result.
 *   Returns `busy`, and runs nothing, if this tab or another tab is running an action
 * @property {(action: () => Promise<unknown>) => Promise<boolean>} afterOthers waits until no other tab runs an action
 *   of `exclusively`, and then runs the action. Returns true; false if the other tab has not ended within
 *   LOCK_PATIENCE_MS, and the action has run all the same. An action that fails is run once more
 * @property {(metric?: string) => void} notify sends a notice to the other tabs: the name of a metric that the person
 *   refuses, or undefined for a withdrawal
 * @property {() => void} close receives no more notices
 */

/**
 * Connect this tab with the tabs that share a channel.
 * @param {string | undefined} channel name of the store; undefined if there are no tabs, as in Node
 * @param {(metric?: string) => void} onNotice is called with each notice of another tab
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
    // Firefox raises if the person has blocked storage. No tab has a store then, so no tab needs a notice.
  }
  if (broadcast) broadcast.onmessage = ({ data }) => onNotice(data);
  // True while this tab runs an action of `exclusively` or requests the lock for it. Without Web Locks, only this value
  // keeps a flush and the background sender of a tab from sending at once.
  let isUnderWay = false;
  return {
    async exclusively(action, busy) {
      if (isUnderWay) return busy;
      isUnderWay = true;
      try {
        if (!locks) return await action();
        return await locks.request(name, { ifAvailable: true }, (lock) => (lock ? action() : busy));
      } finally {
        isUnderWay = false;
      }
    },
    async afterOthers(action) {
      let hasEnded = !locks; // whether no other tab runs an action, as far as this tab can find out
      const runAction = async () => {
        await action();
        return hasEnded;
      };
      if (!locks) return runAction();
      const waiting = new AbortController();
      setTimeout(() => waiting.abort(), LOCK_PATIENCE_MS);
      const { signal } = waiting;
      const runUnderLock = () => {
        hasEnded = true;
        return runAction();
      };
      // `catch` is for two cases. Another tab holds the lock for too long, and the request for the lock is aborted: the
      // action runs without the lock, because an erasure must not depend on a tab that hangs. The result is false. Or
      // the action has failed under the lock: it runs a second time. The result is true.
      return locks.request(name, { signal }, runUnderLock).catch(runAction);
    },
    notify: (metric) => broadcast?.postMessage(metric),
    close: () => broadcast?.close(),
  };
}
