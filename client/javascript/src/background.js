// The background sender: a timer that makes a step of sending when the step is due.
//
// A step sends at most one upload and returns the time of the next step (see uploader.js). Each upload leaves after a
// random delay of its own, up to `maxDelay`, so that the receiver cannot tell from their times that several uploads
// come from one device. The uploads of the backlog (the reports that an earlier page left) have shorter delays, because
// this page may end soon, too.
//
// Example: a page with three reports of an earlier page, and maxDelay = 60.
//
//     0 s      `catchUp(3)`: the first report of the backlog leaves
//     0.4 s    the second one, after a random delay of at most 1 s
//     1.1 s    the third one. No report waits: there is no timer
//     300 s    an event is stored, `nudge`: a step is planned after a random delay of at most 60 s
//     342 s    the step sends nothing. The report of the event waits for the end of its interval, and the step returns
//              the time at which it may leave. The timer wakes at this time

import { ONE } from "./params.js";

/** @typedef {import("./uploader.js").Step} Step */

/**
 * Longest sleep in seconds. After a sleep the sender reads the clock again, because a timer does not notice that the
 * clock was set, and may stop while the machine is suspended. With a larger number, a step could come later than
 * planned by up to this number of seconds.
 */
export const LONGEST_SLEEP = 3600;
/** Largest random delay in seconds between two uploads of the backlog, the reports that an earlier page left. */
const BACKLOG_DELAY = 1;

/** Return the seconds of a monotonic clock, for deadlines and sleeps: a correction of the time does not change it. */
export const readMonotonicClock = () => performance.now() / 1000;

/** Makes the steps of sending when they are due. No timer runs before the first report. */
export class Sender {
  /** @type {(isBacklog: boolean) => Promise<Step>} */ #step;
  /** @type {{ coins: import("../index.js").Coins, clock: import("../index.js").Clock, maxDelay: number }} */
  #settings;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #timer;
  #dueAt = Infinity; // time of the next step, on the monotonic clock
  #isNudged = false; // whether `nudge` has planned a step that has not been made yet
  #isStopped = false;
  #backlog = 0; // number of reports that an earlier page left and that are not tried yet

  /**
   * @param {(isBacklog: boolean) => Promise<Step>} step makes one step of sending. `isBacklog` is true if the step may
   *   send a report of the backlog
   * @param {{ coins: import("../index.js").Coins, clock: import("../index.js").Clock, maxDelay: number }} settings
   */
  constructor(step, settings) {
    this.#step = step;
    this.#settings = settings;
  }

  /** Plan a step after a random delay, because a report was stored. */
  nudge() {
    // The planned step is for this report, too. The earlier of two random times would be earlier on average.
    if (this.#isNudged) return;
    this.#isNudged = true;
    this.#plan(this.#delay());
  }

  /**
   * Send the reports that an earlier page left. The first report is sent at once. Each further report follows the
   * report before it after a random delay of at most a second.
   * @param {number} n number of these reports
   */
  catchUp(n) {
    this.#backlog = n;
    this.#plan(0);
  }

  /** Stop the timer. A step under way continues: `Uploader.close` aborts its request. */
  stop() {
    this.#isStopped = true;
    clearTimeout(this.#timer);
  }

  /**
   * Plan the next step, unless it is planned earlier already.
   * @param {number} seconds from now; Infinity keeps the planned time
   */
  #plan(seconds) {
    const now = readMonotonicClock();
    this.#dueAt = Math.min(this.#dueAt, now + seconds);
    clearTimeout(this.#timer);
    if (this.#isStopped) return;
    const sleep = Math.min(Math.max(this.#dueAt - now, 0), LONGEST_SLEEP);
    this.#timer = setTimeout(() => this.#run(), 1000 * sleep);
    /** @type {any} */ (this.#timer).unref?.(); // in Node the timer must not keep a program alive
  }

  async #run() {
    // The timer has ended after LONGEST_SLEEP, and the step is not due yet: sleep again.
    if (readMonotonicClock() < this.#dueAt) return this.#plan(Infinity);
    this.#isNudged = false; // a report that is stored from here on needs a step of its own
    this.#dueAt = Infinity;
    const { nextAt, id } = await this.#step(this.#backlog > 0);
    // A step without an attempt (`id` is undefined) means that no other report of the backlog may leave now. The others
    // then wait like all reports.
    this.#backlog = id ? this.#backlog - 1 : 0;
    if (nextAt === Infinity) return; // no report waits: the next stored report plans a step
    // The delay separates two uploads. A step without an upload needs none: it returns the time from which a report may
    // leave, and this time is random already.
    const delay = id ? this.#delay(this.#backlog > 0 ? BACKLOG_DELAY : Infinity) : 0;
    this.#plan(Math.min(Math.max(nextAt - this.#settings.clock(), 0), LONGEST_SLEEP) + delay);
  }

  /**
   * Draw a random delay in seconds, uniform between 0 and the smaller of `maxDelay` and another limit.
   * @param {number} atMost the other limit
   */
  #delay(atMost = Infinity) {
    const { coins, maxDelay } = this.#settings;
    return (coins(1)[0] / ONE) * Math.min(maxDelay, atMost);
  }
}
