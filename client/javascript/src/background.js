// The background sender: a timer that runs until the next step is due.

import { ONE } from "./params.js";

/** @typedef {import("./uploader.js").Step} Step */

/** Seconds after which the sender looks at the clock again: a machine may sleep, or its clock may be set. */
export const LONGEST_SLEEP = 3600;
/** Largest random delay in seconds between two uploads that an earlier page left. */
const BACKLOG_DELAY = 1;

/** Return the seconds of a monotonic clock. */
export const elapsed = () => performance.now() / 1000;

/** Takes steps of sending when they are due. There is no timer before the first report. */
export class Sender {
  /** @type {(isBacklog: boolean) => Promise<Step>} */ #step;
  /** @type {{ coins: import("../index.js").Coins, clock: import("../index.js").Clock, maxDelay: number }} */
  #settings;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #timer;
  #due = Infinity;
  #isNudged = false;
  #isStopped = false;
  #backlog = 0;

  /**
   * @param {(isBacklog: boolean) => Promise<Step>} step
   * @param {{ coins: import("../index.js").Coins, clock: import("../index.js").Clock, maxDelay: number }} settings
   */
  constructor(step, settings) {
    this.#step = step;
    this.#settings = settings;
  }

  /** Note that a report was stored. The next step follows after a random delay. */
  nudge() {
    if (this.#isNudged) return;
    this.#isNudged = true;
    this.#plan(this.#delay());
  }

  /**
   * Send the reports that an earlier page left: the first one at once, each other within a second.
   * @param {number} n
   */
  catchUp(n) {
    this.#backlog = n;
    this.#plan(0);
  }

  /** Stop the timer. A request under way may outlast this call. */
  stop() {
    this.#isStopped = true;
    clearTimeout(this.#timer);
  }

  /** @param {number} seconds */
  #plan(seconds) {
    const now = elapsed();
    this.#due = Math.min(this.#due, now + seconds);
    clearTimeout(this.#timer);
    if (this.#isStopped) return;
    const sleep = Math.min(Math.max(this.#due - now, 0), LONGEST_SLEEP);
    this.#timer = setTimeout(() => this.#run(), 1000 * sleep);
    /** @type {any} */ (this.#timer).unref?.(); // in Node it keeps no program alive
  }

  async #run() {
    if (elapsed() < this.#due) return this.#plan(Infinity);
    this.#isNudged = false; // a report that is stored from here on needs a step of its own
    this.#due = Infinity;
    const { due, id } = await this.#step(this.#backlog > 0);
    this.#backlog = id ? this.#backlog - 1 : 0; // an id means that an upload was tried
    if (due === Infinity) return;
    const delay = id ? this.#delay(this.#backlog > 0 ? BACKLOG_DELAY : Infinity) : 0;
    this.#plan(Math.min(Math.max(due - this.#settings.clock(), 0), LONGEST_SLEEP) + delay);
  }

  #delay(atMost = Infinity) {
    const { coins, maxDelay } = this.#settings;
    return (coins(1)[0] / ONE) * Math.min(maxDelay, atMost);
  }
}
