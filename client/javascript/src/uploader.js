// The uploader: one step of sending at a time.
//
// - An upload that fails backs off: longer after each failure, with jitter, up to an hour. Other uploads go
//   on meanwhile. If the collector is not reached, or has failed twice in a row, all uploads pause.
// - After an attempt a metric has a cooldown until its interval is over, so that at most one report leaves in
//   an interval. A device that comes back after days sends its finished reports one by one.
// - After the cooldown the background sender continues at a random time of the next interval, a flush at
//   once.
// - A report that is more than seven days late is given up.

import { nextEnd, release } from "./admission.js";
import { elapsed } from "./background.js";
import { DAY, WEEK, dayOf, epochAt, intervalAt, isFarAhead } from "./calendar.js";
import { ownEntry } from "./collections.js";
import { ONE } from "./params.js";
import { GIVE_UP, buildUpload, giveUp, giveUpLate, limitDelay, queuedCount, recordResult, trim } from "./spool.js";
import { NAME, followStops, stoppedUntil } from "./stops.js";

/** @typedef {import("../index.js").FlushReason} FlushReason */
/** @typedef {import("../index.js").Transport} Transport */
/** @typedef {import("../index.js").TransportResponse} TransportResponse */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Documents} Documents */
/** @typedef {import("../documents.js").FinishedReport} FinishedReport */
/** @typedef {import("../documents.js").QueuedUpload} QueuedUpload */
/** @typedef {import("../documents.js").Spool} Spool */

/**
 * The result of a step. `due` is the time of the next step, infinity if there is none; `id` is the id of the
 * upload that was tried; `queued` is the number of reports that are left.
 * @typedef {{ due: number, reason?: FlushReason, detail?: string, id?: string, queued?: number }} Step
 */

/**
 * Properties of a step: `deadline` and `tried` of a flush, whose first attempt ignores a pause; `isBacklog`
 * of the reports that an earlier page left.
 * @typedef {{ deadline?: number, tried?: Set<string>, isOver?: boolean, isBacklog?: boolean }} StepOptions
 * @typedef {{ deadline: number, tried: Set<string>, isOver: boolean }} FlushOptions
 */

/**
 * The parts of the client that an uploader uses.
 * @typedef {object} Surroundings
 * @property {<T>(work: (documents: Required<Documents>) => T, strict?: boolean) => Promise<T>} update
 *   changes the documents of this identity, or rejects
 * @property {Transport} transport
 * @property {import("../index.js").Clock} clock
 * @property {import("../index.js").Coins} coins
 * @property {import("../index.js").QueueLimits} limits
 * @property {(documents: Required<Documents>) => void} prepare runs before an upload is claimed
 */

const REQUEST = 30; // seconds of one request
const CLAIM = 2; // seconds for which a claimed upload is left to its tab, beside the request
const FIRST_BACKOFF = 5;
const LONGEST_BACKOFF = 3600;
const LONGEST_WAIT = DAY; // a collector cannot ask for more
const IMPLAUSIBLE = 365 * DAY; // between two attempts: the clock was set meanwhile
const MAX_UPLOADS = 20; // that were built and have no result
const FINAL_STATUS = [400, 409, 413, 415, 422]; // HTTP: a retry cannot succeed

/** Sends the uploads of one device through one transport. */
export class Uploader {
  /** @type {Surroundings} */
  #at;
  #isClosed = false;
  /** @type {AbortController | undefined} */ #exchange;
  /** @type {QueuedUpload | undefined} the next upload of a flush, claimed together with the last result */
  #claimed;

  /** @param {Surroundings} surroundings */
  constructor(surroundings) {
    this.#at = surroundings;
  }

  /** Abort the request under way and send no other. */
  close() {
    this.#isClosed = true;
    this.#exchange?.abort();
  }

  /**
   * Send at most one upload, and return when the next step is due.
   * @param {StepOptions} options
   * @returns {Promise<Step>}
   */
  async step(options = {}) {
    const { deadline = Infinity, tried, isBacklog } = options;
    if (this.#isClosed) return { due: Infinity };
    const isClaimed = this.#claimed && this.#at.clock() < this.#claimed.claimed;
    const claim = (/** @type {Required<Documents>} */ documents) => this.#claim(documents, tried, isBacklog);
    const claimed = (isClaimed && this.#claimed) || (await this.#at.update(claim, true));
    this.#claimed = undefined;
    // The client may have been closed, or the flush may have ended, while the store was busy.
    if (this.#isClosed || options.isOver) return { due: Infinity };
    if (!("body" in claimed)) return claimed;
    const timeout = Math.min(Math.max(deadline - elapsed(), 0.001), REQUEST);
    const { response, failure, isLate } = await this.#send(claimed.body, timeout);
    if (this.#isClosed) return { due: Infinity };
    const isCutShort = isLate && timeout < REQUEST;
    // A flush claims its next upload in the change that records the result: one write for an upload.
    const continues = tried && deadline - elapsed() > CLAIM;
    const [step, next] = await this.#at.update((documents) => {
      const step = this.#recordResponse(documents, claimed, response, failure, isCutShort);
      const queued = queuedCount(documents.spool);
      const claimsNext = continues && queued && step.reason === "sent" && !options.isOver;
      const next = claimsNext ? this.#claim(documents, new Set([...tried, claimed.id])) : undefined;
      return /** @type {const} */ ([{ ...step, queued }, next]);
    }, continues);
    if (next && "body" in next) this.#claimed = next;
    return step;
  }

  /** Forget the claimed upload, because the person refused a metric. */
  dropClaim() {
    this.#claimed = undefined;
  }

  /**
   * Send the upload at hand while the page ends. Nothing is sent if the collector asked to wait or stopped
   * the metric, or if the upload was prepared in an earlier interval: another tab may have sent a report of
   * this interval since.
   * @param {Device} device
   * @param {QueuedUpload} upload
   */
  async sendAtPageEnd(device, upload) {
    const { clock, transport } = this.#at;
    const now = clock();
    const { interval } = upload;
    const isEarlier = intervalAt(interval, now).ends !== intervalAt(interval, upload.first).ends;
    const isStopped = stoppedUntil(device, upload.metric, now);
    if (isTooOld(upload, now) || isLate(upload, now) || isStopped || isEarlier) return;
    if (pause(device, upload, now, 0, false)) return;
    await transport.send(upload.body, {});
  }

  /**
   * Return the upload at hand, which leaves if the page ends now: the one before, or a new one. A page cannot
   * store that it ends, so the seven days of the upload begin at once.
   * @param {Required<Documents>} documents
   * @param {QueuedUpload | undefined} before
   * @returns {QueuedUpload | undefined}
   */
  uploadAtHand({ device, spool }, before) {
    const now = this.#at.clock();
    const own = spool.uploads.find(({ id, attempts }) => id === before?.id && !attempts);
    if (own || spool.uploads.length >= MAX_UPLOADS) return own;
    const report = freeReport(spool, now, now, this.#cooldowns(device, spool, now, false));
    return report && Object.assign(buildUpload(spool, report), { first: now });
  }

  /**
   * Return the response of the collector, or the name of the failure. A transport of the host may raise
   * anything.
   * @param {string} body
   * @param {number} timeout
   * @returns {Promise<{ response?: TransportResponse, failure?: string, isLate?: boolean }>}
   */
  async #send(body, timeout) {
    const exchange = new AbortController();
    const { signal } = exchange;
    this.#exchange = exchange;
    const abort = () => exchange.abort(new DOMException("", "TimeoutError"));
    const timer = setTimeout(abort, 1000 * timeout);
    try {
      const aborted = new Promise((_, reject) => {
        signal.onabort = () => reject(signal.reason); // a transport may ignore its signal
      });
      const response = await Promise.race([this.#at.transport.send(body, { signal }), aborted]);
      return { response };
    } catch (error) {
      return { failure: error instanceof Error ? error.name : "error", isLate: signal.aborted };
    } finally {
      clearTimeout(timer);
    }
  }

  /**
   * Claim the upload to send now and return it, or return a step without an upload.
   * @param {Required<Documents>} documents
   * @param {Set<string> | undefined} tried
   * @param {boolean} [isBacklog]
   * @returns {QueuedUpload | Step}
   */
  #claim(documents, tried, isBacklog) {
    const { device, spool, log } = documents;
    const { clock, coins, limits, prepare } = this.#at;
    const now = clock();
    prepare(documents);
    release(device, spool, now, coins);
    trim(device, spool, limits);
    limitDelay(spool, now + WEEK);
    const stopOf = (/** @type {{ metric: string }} */ { metric }) => stoppedUntil(device, metric, now);
    const mayLeave = (/** @type {{ metric: string }} */ item) => !stopOf(item);
    const isGivenUp = (/** @type {QueuedUpload} */ upload) => isTooOld(upload, now) || isLate(upload, now);
    for (const { id } of spool.uploads.filter(isGivenUp)) {
      recordResult(device, spool, log, id, "given_up", { now, limits });
    }
    const cooldowns = this.#cooldowns(device, spool, now, Boolean(tried ?? isBacklog));
    const next = nextToSend(device, spool, now, tried, mayLeave, cooldowns);
    if (!next) {
      // A flush does not wait for the random time of a report.
      const times = spool.reports.map(({ metric, sendAfter }) =>
        Math.max(cooldowns.get(metric) ?? sendAfter, tried ? 0 : sendAfter),
      );
      times.push(...spool.uploads.map(stopOf));
      const queued = [...spool.reports, ...spool.uploads];
      const isStopped = queued.length && !queued.some(mayLeave);
      return { due: Math.min(nextEnd(device), ...times), reason: isStopped ? "asked to wait" : undefined };
    }
    const { metric, id, backoff = 0 } = /** @type {QueuedUpload} */ (next); // a report has no id and backoff
    const isUntried = tried && !tried.has(id);
    const wait = pause(device, next, now, isUntried ? 0 : backoff, tried?.size === 0);
    if (wait) return wait;
    const upload = "id" in next ? next : buildUpload(spool, next);
    if (isImplausible(upload, now)) upload.first = now;
    upload.attempts += 1;
    upload.claimed = now + CLAIM;
    // A clock that was set back must not date an attempt before an earlier one: the cooldown would end
    // early. A date far ahead was stored under a wrong clock.
    const [before] = ownEntry(spool.last, metric) ?? [0];
    const isWrong = isFarAhead(intervalAt(upload.interval, before), now);
    spool.last[metric] = [isWrong ? now : Math.max(before, now), coins(1)[0] / ONE];
    return { ...upload };
  }

  /**
   * Return the end of each metric's cooldown; metrics without an entry have none. Reports that could have
   * left a week ago are given up before.
   *
   * - A stopped metric waits until the stop is over.
   * - A metric with an upload waits for its result.
   * - After an attempt a metric waits until the interval of the attempt is over; with `interval = "epoch"`
   *   until the epoch is over, and the sender looks again every day.
   * - A report that was finished before the cooldown ended waits in the background for a random time of the
   *   next interval.
   * @param {Device} device
   * @param {Spool} spool
   * @param {number} now
   * @param {boolean} isHurried
   * @returns {Map<string, number>}
   */
  #cooldowns(device, spool, now, isHurried) {
    giveUpLate(device, spool, now);
    giveUp(device, spool, now - IMPLAUSIBLE, now - GIVE_UP);
    const { reports, uploads } = spool;
    const cooldowns = new Map();
    for (const { metric, sendAfter, interval, epoch = "month" } of [...reports].sort((a, b) => a.sendAfter - b.sendAfter)) {
      if (cooldowns.has(metric)) continue;
      const stop = stoppedUntil(device, metric, now);
      const attempt = ownEntry(spool.last, metric);
      if (stop) cooldowns.set(metric, stop);
      else if (uploads.some((upload) => upload.metric === metric)) cooldowns.set(metric, Infinity);
      else if (attempt) {
        const [last, part] = attempt;
        const isSameEpoch = epochAt(epoch, dayOf(last)) === epochAt(epoch, dayOf(now));
        const reference = interval === "epoch" && isSameEpoch ? now : last;
        const cooldown = intervalAt(interval, reference);
        if (isFarAhead(cooldown, now)) continue;
        const { ends, seconds } = cooldown;
        const left = Math.min(seconds, Math.max(sendAfter + GIVE_UP - ends, 0));
        cooldowns.set(metric, sendAfter < ends && !isHurried ? ends + part * left : ends);
      }
    }
    return cooldowns;
  }

  /**
   * Record the result of an attempt and return the step.
   * @param {Required<Documents>} documents
   * @param {QueuedUpload} upload
   * @param {TransportResponse | undefined} response
   * @param {string | undefined} failure
   * @param {boolean | undefined} isCutShort by the deadline of a flush: the collector has not failed
   * @returns {Step}
   */
  #recordResponse({ device, spool, log }, { id }, response, failure, isCutShort) {
    const { clock, limits } = this.#at;
    const now = clock();
    const result = response && readResponse(response);
    const finish = (/** @type {string} */ status) => {
      recordResult(device, spool, log, id, status, { now, limits });
      device.sending = { failures: 0, asked: 0, pause: 0 };
    };
    if (result) {
      finish(result.status);
      followStops(device, result.stop, dayOf(now));
      const reason = result.status === "accepted" ? "sent" : "refused";
      return { due: now, reason, detail: result.status, id };
    }
    const { status = 0 } = response ?? {};
    const detail = response ? `status ${status}` : failure;
    if (FINAL_STATUS.includes(status)) {
      finish(`refused: ${detail}`);
      return { due: now, reason: "refused", detail, id };
    }
    const upload = spool.uploads.find((other) => other.id === id);
    if (upload) Object.assign(upload, { claimed: 0, backoff: now });
    const due = isCutShort ? now : this.#backOff(device, upload, response, now);
    return { due, reason: response ? "collector error" : "unreachable", detail, id };
  }

  /**
   * Let a failed upload back off, and the others pause if they would fail, too. Return the end of the pause.
   * @param {Device} device
   * @param {QueuedUpload | undefined} upload
   * @param {TransportResponse | undefined} response
   * @param {number} now
   */
  #backOff({ sending }, upload, response, now) {
    const wanted = Number(response?.retryAfter) || 0; // a transport of the host may return anything
    const asked = Math.min(Math.max(wanted, 0), LONGEST_WAIT - LONGEST_BACKOFF);
    sending.asked = now + asked;
    if (upload) upload.backoff = sending.asked + this.#delay(upload.attempts);
    sending.failures += 1;
    // The first bad response may concern this upload alone.
    if (response && sending.failures === 1) return sending.asked;
    sending.pause = sending.asked + this.#delay(sending.failures - 1);
    return sending.pause;
  }

  /** @param {number} attempts */
  #delay(attempts) {
    const ceiling = Math.min(FIRST_BACKOFF * 2 ** attempts, LONGEST_BACKOFF);
    return (this.#at.coins(1)[0] / ONE) * ceiling; // full jitter
  }
}

/**
 * Return the upload or report to send next. The order is: the oldest upload that is due, a new report, an
 * upload that the flush has not tried, the upload that is due next. After a failure a new report goes
 * first, so that uploads that always fail delay no other. Stopped metrics and new reports of a metric in its
 * cooldown are left out.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 * @param {Set<string> | undefined} tried
 * @param {(upload: { metric: string }) => boolean} mayLeave
 * @param {Map<string, number>} cooldowns
 */
function nextToSend({ sending }, spool, now, tried, mayLeave, cooldowns) {
  const uploads = spool.uploads.filter(mayLeave);
  const due = uploads.find(({ backoff }) => !isAhead(backoff, now, LONGEST_WAIT));
  const hasRoom = uploads.length < MAX_UPLOADS;
  const fresh = hasRoom && freeReport(spool, tried ? Infinity : now, now, cooldowns);
  const untried = tried && uploads.find(({ id }) => !tried.has(id));
  const soonest = uploads.sort((a, b) => a.backoff - b.backoff)[0];
  return (!sending.failures && due) || fresh || due || untried || soonest;
}

/**
 * Return the oldest report that may leave, of a metric without a cooldown.
 * @param {Spool} spool
 * @param {number} latest
 * @param {number} now
 * @param {Map<string, number>} cooldowns
 * @returns {FinishedReport | undefined}
 */
function freeReport({ reports }, latest, now, cooldowns) {
  return reports.find(
    ({ sendAfter, metric }) => sendAfter <= latest && (cooldowns.get(metric) ?? 0) <= now,
  );
}

/**
 * Return a step that waits for an upload; undefined if the upload may be sent now.
 * @param {Device} device
 * @param {Partial<QueuedUpload>} upload
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
 * Return whether a time is ahead. A time beyond the longest wait was stored before the clock was set back.
 * @param {number} time
 * @param {number} now
 * @param {number} longest
 */
function isAhead(time, now, longest) {
  return now < time && time <= now + longest;
}

/**
 * Return whether the epoch of an upload is over that had to leave within it.
 * @param {QueuedUpload} upload
 * @param {number} now
 */
function isLate({ leavesBefore = Infinity }, now) {
  return now >= leavesBefore;
}

/**
 * @param {QueuedUpload} upload
 * @param {number} now
 */
function isTooOld(upload, now) {
  return !isImplausible(upload, now) && now > upload.first + GIVE_UP;
}

/**
 * Return whether the first attempt has no plausible date: there was none, or the clock was wrong then or is
 * wrong now. The seven days begin anew.
 * @param {QueuedUpload} upload
 * @param {number} now
 */
function isImplausible({ first }, now) {
  return !(first && first <= now && now - first <= IMPLAUSIBLE);
}

/**
 * Return the status of the report and the stops; undefined for an error or a truncated response.
 * @param {TransportResponse} response
 */
function readResponse({ status, body }) {
  if (Math.floor(status / 100) !== 2) return undefined;
  try {
    const { reports, stop } = JSON.parse(body);
    const [{ status: one, reason }] = reports;
    if (reports.length !== 1 || one === undefined) return undefined;
    if (one === "accepted") return { status: one, stop };
    // The reason enters the log. Only a word that a collector may use does.
    const word = typeof reason === "string" && NAME.test(reason) ? reason : "no reason given";
    return { status: `refused: ${word}`, stop };
  } catch {
    return undefined;
  }
}
