// One step of sending at a time: which upload is due, what an answer means, when to try again.
//
// An upload that fails waits while others go: longer after each failure, with jitter, up to an
// hour. When the collector is not reached, or has failed twice in a row, the others wait as well.
//
// A metric with an interval rests after each attempt until the interval is over, so that a device that
// comes back after days lets what waits follow one by one. Then the background sender goes on at a
// random time of the next interval, a flush at once. What would follow after seven days is given up.

import { DAY, WEEK, dayOf, epochAt, intervalAt, isFarAhead } from "./calendar.js";
import { ONE } from "./params.js";
import { own } from "./records.js";
import { nextEnd, release } from "./reservoir.js";
import { elapsed } from "./sender.js";
import { GIVE_UP, build, giveUp, hasten, nWaiting, settle, trim } from "./spool.js";
import { NAME, follow, silentUntil } from "./stops.js";

/** @typedef {import("../index.js").Answer} Answer */
/** @typedef {import("../index.js").Epoch} Epoch */
/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").FlushReason} FlushReason */
/** @typedef {import("../index.js").Transport} Transport */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Documents} Documents */
/** @typedef {import("../documents.js").Pending} Pending */
/** @typedef {import("../documents.js").Spool} Spool */

/**
 * What one step met, and when the next one is due: infinity if none is.
 * @typedef {{ due: number, reason?: FlushReason, detail?: string, id?: string, waiting?: number }} Step
 */

/**
 * Of a flush, whose first attempt is urgent; or of what an earlier page has left.
 * @typedef {{ deadline?: number, tried?: Set<string>, isOver?: boolean, isBacklog?: boolean }} Hurry
 * @typedef {{ deadline: number, tried: Set<string>, isOver: boolean }} FlushHurry
 */

/**
 * What the client lends to its uploader.
 * @typedef {object} Surroundings
 * @property {<T>(work: (documents: Required<Documents>) => T, strict?: boolean) => Promise<T>} update
 *   changes the documents of this identity, or rejects
 * @property {Transport} transport
 * @property {import("../index.js").Clock} clock
 * @property {import("../index.js").Coins} coins
 * @property {import("../index.js").Limits} limits
 * @property {(documents: Required<Documents>) => void} prepare runs before an upload is claimed
 * @property {(metric: string) => string[]} together names what is answered together with a metric
 * @property {(metric: string) => Pick<Metric, "interval"> & Partial<Metric>} pace of a metric; none for an unknown one
 */

const REQUEST = 30;
const CLAIM = 2;
const FIRST_BACKOFF = 5;
const LONGEST_BACKOFF = 3600;
const LONGEST_WAIT = DAY;
const IMPLAUSIBLE = 365 * DAY; // between two attempts: the clock was set
const MOST_PENDING = 20;
const DROPPED = [400, 409, 413, 415, 422]; // what no repetition changes

/** Sends the uploads of one device through one transport. */
export class Uploader {
  /** @type {Surroundings} */
  #at;
  #isClosed = false;
  /** @type {AbortController | undefined} */ #exchange;
  /** @type {Pending | undefined} what a flush sends next: it was claimed as the one before was settled */
  #claimed;

  /** @param {Surroundings} surroundings */
  constructor(surroundings) {
    this.#at = surroundings;
  }

  /** Sever the exchange under way and make no other. */
  close() {
    this.#isClosed = true;
    this.#exchange?.abort();
  }

  /**
   * Send the upload that is due, one at most, and say when the next step is.
   * @param {Hurry} hurry
   * @returns {Promise<Step>}
   */
  async step(hurry = {}) {
    const { deadline = Infinity, tried, isBacklog } = hurry;
    if (this.#isClosed) return { due: Infinity };
    const isClaimed = this.#claimed && this.#at.clock() < this.#claimed.claimed;
    const claim = (/** @type {Required<Documents>} */ documents) => this.#claim(documents, tried, isBacklog);
    const claimed = (isClaimed && this.#claimed) || (await this.#at.update(claim, true));
    this.#claimed = undefined;
    if (this.#isClosed || hurry.isOver) return { due: Infinity }; // meanwhile
    if (!("body" in claimed)) return claimed;
    const timeout = Math.min(Math.max(deadline - elapsed(), 0.001), REQUEST);
    const { answer, failure, isLate } = await this.#send(claimed.body, timeout);
    if (this.#isClosed) return { due: Infinity };
    const isCutShort = isLate && timeout < REQUEST;
    const goesOn = tried && deadline - elapsed() > CLAIM; // one change of the store for two
    const [step, next] = await this.#at.update((documents) => {
      const step = this.#settle(documents, claimed, answer, failure, isCutShort);
      const waiting = nWaiting(documents.spool);
      const isNext = goesOn && waiting && step.reason === "sent" && !hurry.isOver;
      const next = isNext ? this.#claim(documents, new Set([...tried, claimed.id])) : undefined;
      return /** @type {const} */ ([{ ...step, waiting }, next]);
    }, goesOn);
    if (next && "body" in next) this.#claimed = next;
    return step;
  }

  /** Forget what was claimed: a metric is refused. */
  drop() {
    this.#claimed = undefined;
  }

  /**
   * Send what is at hand while the page ends, unless the collector asked to wait, or to stop. What has
   * been at hand since an earlier interval another tab may have sent, and one of this interval too.
   * @param {Device} device
   * @param {Pending} upload
   */
  async leave(device, upload) {
    const { clock, transport, pace } = this.#at;
    const now = clock();
    const isHeld = isTooOld(upload, now) || this.#stops(device, now)(upload);
    const { interval } = pace(upload.metric);
    const moved = intervalAt(interval, now).ends - intervalAt(interval, upload.first).ends; // NaN without
    if (isHeld || moved || pause(device, upload, now, 0, false)) return;
    await transport.send(upload.body, {});
  }

  /**
   * Return the upload that leaves if a page ends now: the one it had, or a new one. No page can write
   * down that it ends, so the upload's week begins at once.
   * @param {Required<Documents>} documents
   * @param {Pending | undefined} before
   * @returns {Pending | undefined}
   */
  atHand({ device, spool }, before) {
    const now = this.#at.clock();
    const mine = spool.uploads.find(({ id, attempts }) => id === before?.id && !attempts);
    if (mine || spool.uploads.length >= MOST_PENDING) return mine;
    const report = freeReport(spool, now, now, this.#rests(device, spool, now, false));
    return report && Object.assign(build(spool, report), { first: now });
  }

  /**
   * Return the collector's answer, or the name of what failed; a host's transport may raise anything.
   * @param {string} body
   * @param {number} timeout
   * @returns {Promise<{ answer?: Answer, failure?: string, isLate?: boolean }>}
   */
  async #send(body, timeout) {
    const exchange = new AbortController();
    const { signal } = exchange;
    this.#exchange = exchange;
    const late = () => exchange.abort(new DOMException("", "TimeoutError"));
    const timer = setTimeout(late, 1000 * timeout);
    try {
      const ended = new Promise((_, reject) => {
        signal.onabort = () => reject(signal.reason); // also for a transport that does not listen
      });
      const answer = await Promise.race([this.#at.transport.send(body, { signal }), ended]);
      return { answer };
    } catch (error) {
      return { failure: error instanceof Error ? error.name : "error", isLate: signal.aborted };
    } finally {
      clearTimeout(timer);
    }
  }

  /**
   * Return the upload to send now, claimed, or the step that says why there is none.
   * @param {Required<Documents>} documents
   * @param {Set<string> | undefined} tried
   * @param {boolean} [isBacklog]
   * @returns {Pending | Step}
   */
  #claim(documents, tried, isBacklog) {
    const { device, spool, log } = documents;
    const { clock, coins, limits, prepare, pace } = this.#at;
    const now = clock();
    prepare(documents);
    release(device, spool, now, coins);
    trim(device, spool, limits);
    hasten(spool, now + WEEK);
    const stoppedUntil = this.#stops(device, now);
    const mayLeave = (/** @type {{ metric: string }} */ of) => !stoppedUntil(of);
    for (const { id } of spool.uploads.filter((each) => isTooOld(each, now))) {
      settle(device, spool, log, id, "given_up", { now, limits });
    }
    const rests = this.#rests(device, spool, now, Boolean(tried ?? isBacklog));
    const found = next(device, spool, now, tried, mayLeave, rests);
    if (!found) {
      const moments = spool.reports.map(({ metric, due }) =>
        Math.max(rests.get(metric) ?? due, tried ? 0 : due),
      );
      moments.push(...spool.uploads.map(stoppedUntil));
      const waiting = [...spool.reports, ...spool.uploads];
      const isStopped = waiting.length && !waiting.some(mayLeave);
      const reason = isStopped ? "asked to wait" : undefined;
      return { due: Math.min(nextEnd(device), ...moments), reason };
    }
    const { metric, id, backoff = 0 } = /** @type {Pending} */ (found); // both are absent in a new one
    const isUntried = tried && !tried.has(id);
    const wait = pause(device, found, now, isUntried ? 0 : backoff, tried?.size === 0);
    if (wait) return wait;
    const upload = "id" in found ? found : build(spool, found);
    if (isImplausible(upload, now)) upload.first = now;
    upload.attempts += 1;
    upload.claimed = now + CLAIM;
    const { last } = spool;
    const [before] = own(last, metric) ?? [0]; // a clock that is set back makes it no earlier
    const at = isFarAhead(intervalAt(pace(metric).interval, before), now) ? now : Math.max(before, now);
    last[metric] = [at, coins(1)[0] / ONE];
    return { ...upload };
  }

  /**
   * Return what says until when the collector stopped a metric; 0 where it did not.
   * @param {Device} device
   * @param {number} now
   */
  #stops(device, now) {
    const { together } = this.#at;
    return (/** @type {{ metric: string }} */ { metric }) => silentUntil(device, together(metric), now);
  }

  /**
   * Return until when metrics let no other report leave; those absent are free to. They rest where the
   * collector stopped them, and until the
   * last one is answered and the interval of its last attempt is over: the epoch, where one day of each is
   * drawn. For what has waited meanwhile the background sender draws a time of the next interval. Before,
   * what was due a week ago is given up, but the last one: of a page that is seldom visited it is the only
   * one.
   * @param {Device} device
   * @param {Spool} spool
   * @param {number} now
   * @param {boolean} isHurried
   * @returns {Map<string, number>}
   */
  #rests(device, spool, now, isHurried) {
    const { pace } = this.#at;
    const isPaced = (/** @type {{ metric: string }} */ { metric }) => pace(metric).interval !== "none";
    giveUp(device, spool, isPaced, now - IMPLAUSIBLE, now - GIVE_UP);
    const { reports, uploads } = spool;
    const rests = new Map();
    const stoppedUntil = this.#stops(device, now);
    for (const report of [...reports].sort((one, other) => one.due - other.due)) {
      const { metric, due } = report;
      if (rests.has(metric)) continue;
      const before = own(spool.last, metric);
      const stop = stoppedUntil(report);
      if (stop) rests.set(metric, stop);
      else if (!isPaced(report)) continue;
      else if (!due) rests.set(metric, 0); // it is of an earlier registry, that had no interval
      else if (uploads.some((each) => each.metric === metric)) rests.set(metric, Infinity);
      else if (before) {
        const [last, part] = before;
        const { interval, epoch } = pace(metric);
        const epochOf = (/** @type {number} */ when) => epochAt(/** @type {Epoch} */ (epoch), dayOf(when));
        const isSame = interval === "epoch" && epochOf(last) === epochOf(now);
        const at = isSame ? now : last; // tomorrow it is looked at again
        const span = intervalAt(interval, at);
        if (isFarAhead(span, now)) continue;
        const { ends, seconds } = span;
        const left = Math.min(seconds, Math.max(due + GIVE_UP - ends, 0));
        rests.set(metric, due < ends && !isHurried ? ends + part * left : ends);
      }
    }
    return rests;
  }

  /**
   * @param {Required<Documents>} documents
   * @param {Pending} upload
   * @param {Answer | undefined} answer
   * @param {string | undefined} failure
   * @param {boolean | undefined} isCutShort by the caller's own deadline: the collector has not failed
   * @returns {Step}
   */
  #settle({ device, spool, log }, { id }, answer, failure, isCutShort) {
    const { clock, limits } = this.#at;
    const now = clock();
    const read = answer && statusOf(answer);
    const close = (/** @type {string} */ status) => {
      settle(device, spool, log, id, status, { now, limits });
      device.sending = { failures: 0, asked: 0, pause: 0 };
    };
    if (read) {
      close(read.status);
      follow(device, read.stop, dayOf(now));
      const reason = read.status === "accepted" ? "sent" : "refused";
      return { due: now, reason, detail: read.status, id };
    }
    const { status = 0 } = answer ?? {};
    const detail = answer ? `status ${status}` : failure;
    if (DROPPED.includes(status)) {
      close(`refused: ${detail}`);
      return { due: now, reason: "refused", detail, id };
    }
    const upload = spool.uploads.find((each) => each.id === id);
    if (upload) Object.assign(upload, { claimed: 0, backoff: now });
    const due = isCutShort ? now : this.#postpone(device, upload, answer, now);
    return { due, reason: answer ? "collector error" : "unreachable", detail, id };
  }

  /**
   * Let an upload wait, and the others where they would fail too; say when one may go.
   * @param {Device} device
   * @param {Pending | undefined} upload
   * @param {Answer | undefined} answer
   * @param {number} now
   */
  #postpone({ sending }, upload, answer, now) {
    const wanted = Number(answer?.retryAfter) || 0; // a host's transport may tell anything
    const asked = Math.min(Math.max(wanted, 0), LONGEST_WAIT - LONGEST_BACKOFF);
    sending.asked = now + asked;
    if (upload) upload.backoff = sending.asked + this.#backoff(upload.attempts);
    sending.failures += 1;
    if (answer && sending.failures === 1) return sending.asked;
    sending.pause = sending.asked + this.#backoff(sending.failures - 1);
    return sending.pause;
  }

  /** @param {number} attempts */
  #backoff(attempts) {
    const ceiling = Math.min(FIRST_BACKOFF * 2 ** attempts, LONGEST_BACKOFF);
    return (this.#at.coins(1)[0] / ONE) * ceiling; // full jitter
  }
}

/**
 * Return the oldest upload that is due, else a new one, else one that a flush has not tried, else
 * the one that is due next. After a failure a new one goes first, so that those that always fail hold
 * up no other. What is stopped waits, and what is new of a metric that rests.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 * @param {Set<string> | undefined} tried
 * @param {(upload: { metric: string }) => boolean} mayLeave
 * @param {Map<string, number>} rests
 */
function next({ sending }, spool, now, tried, mayLeave, rests) {
  const uploads = spool.uploads.filter(mayLeave);
  const due = uploads.find(({ backoff }) => !isAhead(backoff, now, LONGEST_WAIT));
  const isRoom = uploads.length < MOST_PENDING;
  const fresh = isRoom && freeReport(spool, tried ? Infinity : now, now, rests);
  const untried = tried && uploads.find(({ id }) => !tried.has(id));
  const soonest = uploads.sort((a, b) => a.backoff - b.backoff)[0];
  return (!sending.failures && due) || fresh || due || untried || soonest;
}

/**
 * Return the oldest report that is due, of a metric that does not rest.
 * @param {Spool} spool
 * @param {number} dueBy
 * @param {number} now
 * @param {Map<string, number>} rests
 */
function freeReport({ reports }, dueBy, now, rests) {
  return reports.find(({ due, metric }) => due <= dueBy && (rests.get(metric) ?? 0) <= now);
}

/**
 * Return the step that waits for an upload, undefined if it may be sent now.
 * @param {Device} device
 * @param {Partial<Pending>} upload
 * @param {number} now
 * @param {number} backoff
 * @param {boolean} isUrgent
 * @returns {Step | undefined}
 */
function pause({ sending }, { claimed = 0 }, now, backoff, isUrgent) {
  if (isAhead(claimed, now, CLAIM)) return { due: claimed, reason: "busy" };
  if (isAhead(sending.asked, now, LONGEST_WAIT)) {
    return { due: sending.asked, reason: "asked to wait" };
  }
  const until = Math.max(backoff, isUrgent ? 0 : sending.pause);
  return isAhead(until, now, LONGEST_WAIT) ? { due: until } : undefined;
}

/**
 * Return whether a moment is to come; one beyond the longest wait is of a clock set back.
 * @param {number} moment
 * @param {number} now
 * @param {number} longest
 */
function isAhead(moment, now, longest) {
  return now < moment && moment <= now + longest;
}

/**
 * @param {Pending} upload
 * @param {number} now
 */
function isTooOld(upload, now) {
  return !isImplausible(upload, now) && now > upload.first + GIVE_UP;
}

/**
 * Return whether there was no first attempt, or the clock was wrong then or is now: the week starts.
 * @param {Pending} upload
 * @param {number} now
 */
function isImplausible({ first }, now) {
  return !(first && first <= now && now - first <= IMPLAUSIBLE);
}

/**
 * Read the report's status and what is to stop; undefined for an error, or an answer cut short.
 * @param {Answer} answer
 */
function statusOf({ status, body }) {
  if (Math.floor(status / 100) !== 2) return undefined;
  try {
    const { reports, stop } = JSON.parse(body);
    const [{ status: one, reason }] = reports;
    if (reports.length !== 1 || one === undefined) return undefined;
    if (one === "accepted") return { status: one, stop };
    const told = typeof reason === "string" && NAME.test(reason) ? reason : "no reason given";
    return { status: `refused: ${told}`, stop };
  } catch {
    return undefined;
  }
}
