// The background sender: a timer that is set until an upload is due.

import { ONE } from "./params.js";

/** @typedef {import("./uploader.js").Step} Step */

export const LONGEST_SLEEP = 3600; // a machine may sleep, or set its clock, meanwhile
const BACKLOG = 1;

/** Return seconds by a clock that nobody can set. */
export const elapsed = () => performance.now() / 1000;

/** Takes steps when they are due; there is no timer before the first nudge. */
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

  /** Note that a report waits; it is sent after a random delay. */
  nudge() {
    if (this.#isNudged) return;
    this.#isNudged = true;
    this.#plan(this.#delay());
  }

  /**
   * Send what an earlier page has left: the first report at once, each other a moment later.
   * @param {number} n
   */
  catchUp(n) {
    this.#backlog = n;
    this.#plan(0);
  }

  /** End it; a request that is under way may outlast this call. */
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
    this.#isNudged = false; // what is recorded from here on is for the next step
    this.#due = Infinity;
    const { due, id } = await this.#step(this.#backlog > 0);
    this.#backlog = id ? this.#backlog - 1 : 0; // an upload was sent, or tried
    if (due === Infinity) return;
    const delay = id ? this.#delay(this.#backlog > 0 ? BACKLOG : Infinity) : 0;
    this.#plan(Math.min(Math.max(due - this.#settings.clock(), 0), LONGEST_SLEEP) + delay);
  }

  #delay(atMost = Infinity) {
    const { coins, maxDelay } = this.#settings;
    return (coins(1)[0] / ONE) * Math.min(maxDelay, atMost);
  }
}
