// The uploader: chooses which report may leave now, sends it once, and records the result.
//
// `step` makes one step. A step never sleeps; it returns the time of the next step, for which the background sender
// or a flush waits.
//
// The life of a report that has left its interval:
//
//     finished report --claim--> upload, claimed --response--> accepted, or refused: REASON           (for good)
//                                    |
//                                    +--failure--> waits for its backoff --claim--> claimed --> ...
//                                    |
//                                    +--the page ends: the claim ends after 2 s, next attempt
//     finished report or upload --too late--> given_up                                                (for good)
//
// Invariants:
//
// - The store has the upload and its id before the upload leaves. So a retry sends the same bytes, and a collector
//   that gets them twice counts them once.
// - At most one report of a metric leaves the device in an interval. Blocks of the collector depend on this limit. So
//   days without network do not end in several reports of one device on one day.
// - The time of an upload does not reveal the time of its event.
//
// Six things can make a report wait:
//
//     wait           of             duration                                     ignored by
//     sendAfter      a report       random time of the next interval             a flush
//     claim          an upload      2 s; another tab may be sending it           nobody
//     backoff        an upload      random, up to 10, 20, 40 ... s, at most      a flush, for uploads that it has
//                                   an hour; longer after each attempt           not tried
//     pause          all uploads    random, as backoff, by the failures in       the first attempt of a flush
//                                   a row; not after the first error response
//     Retry-After    all uploads    as the collector asks, at most 23 h          nobody
//     cooldown       a metric       until the interval of its last attempt is    a flush and the backlog: the
//                                   over, then a random part of the next one     random part
//
// The backlog is the reports that an earlier page left. The collector can also stop a metric for some days (stops.js).
//
// Clocks may be wrong. A wait that is longer than any wait of this module was computed while the clock was ahead, and
// is ignored. A first attempt that is in the future, or more than a year ago, does not give an upload up.

import { nextEnd, releasePendingReports } from "./admission.js";
import { readMonotonicClock } from "./background.js";
import { getOwnEntry } from "./collections.js";
import { ONE } from "./params.js";
import { DAY, WEEK, dayOf, epochAt, intervalAt, isFarAhead } from "./periods.js";
import { GIVE_UP_SECONDS, buildUpload, giveUpLateReports, giveUpOldReports, limitDelay, queuedCount, recordResult, trimSpool } from "./spool.js";
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
 * Result of a step.
 * @typedef {object} Step
 * @property {number} nextAt time of the next step, infinity if no step is needed before another report is finished
 * @property {FlushReason} [reason] result of the attempt, or the reason why nothing may be sent; undefined if the
 *   reports only wait for their times
 * @property {string} [detail] HTTP status, status of the report, or name of the failure
 * @property {string} [id] id of the upload that was tried
 * @property {number} [queued] number of reports that are still queued
 */

/**
 * Options of the steps of a flush. The set `tried` grows with the steps of the flush.
 * @typedef {object} FlushOptions
 * @property {number} deadline end of the flush, on the monotonic clock in seconds
 * @property {Set<string>} tried ids of the uploads that the flush has tried
 * @property {boolean} isOver whether the flush has returned while a step of it waits for the store
 */

/** @typedef {Partial<FlushOptions> & { isBacklog?: boolean }} StepOptions `isBacklog`: the step may send the backlog */

/**
 * The parts of the client that an uploader uses.
 * @typedef {object} UploaderContext
 * @property {<T>(work: (documents: Required<Documents>) => T, strict?: boolean) => Promise<T>} update
 *   changes the documents of this identity, or rejects
 * @property {Transport} transport
 * @property {import("../index.js").Clock} clock
 * @property {import("../index.js").Coins} coins
 * @property {import("../index.js").QueueLimits} limits
 * @property {(documents: Required<Documents>) => void} prepare runs before an upload is claimed
 */

const REQUEST_SECONDS = 30; // seconds of one request
const CLAIM_SECONDS = 2; // seconds for which a claimed upload is left to its tab, beside the request
const FIRST_BACKOFF_SECONDS = 5;
const MAX_BACKOFF_SECONDS = 3600;
const MAX_WAIT_SECONDS = DAY; // a collector cannot ask for more
const IMPLAUSIBLE_SECONDS = 365 * DAY; // between two attempts: the clock was set meanwhile
const MAX_TRIED = 20; // that were built and have no result
const FINAL_STATUS = [400, 409, 413, 415, 422]; // HTTP: a retry cannot succeed

/** Sends the uploads of one device through one transport. */
export class Uploader {
  /** @type {UploaderContext} */
  #context;
  #isClosed = false;
  /** @type {AbortController | undefined} of the request under way */ #exchange;
  /** @type {QueuedUpload | undefined} the next upload of a flush, claimed in the transaction of the last result */
  #claimed;

  /** @param {UploaderContext} context */
  constructor(context) {
    this.#context = context;
  }

  /** Abort the request under way, and send nothing more. */
  close() {
    this.#isClosed = true;
    this.#exchange?.abort();
  }

  /**
   * Send at most one upload. The upload is claimed in one transaction, sent without a transaction, and its result is
   * recorded in another one.
   * @param {StepOptions} options
   * @returns {Promise<Step>}
   */
  async step(options = {}) {
    const { deadline = Infinity, tried, isBacklog } = options;
    if (this.#isClosed) return { nextAt: Infinity };
    const isStillClaimed = this.#claimed && this.#context.clock() < this.#claimed.claimed;
    const claim = (/** @type {Required<Documents>} */ documents) => this.#claim(documents, tried, isBacklog);
    // The claim must be on the disk before the upload leaves, or another page could send its report in a new upload.
    const claimed = (isStillClaimed && this.#claimed) || (await this.#context.update(claim, true));
    this.#claimed = undefined;
    // The client may have been closed, or the flush may have ended, while the store was busy.
    if (this.#isClosed || options.isOver) return { nextAt: Infinity };
    if (!("body" in claimed)) return claimed; // a step that only waits
    const timeout = Math.min(Math.max(deadline - readMonotonicClock(), 0.001), REQUEST_SECONDS);
    const { response, failure, isAborted } = await this.#send(claimed.body, timeout);
    if (this.#isClosed) return { nextAt: Infinity };
    const isCutShort = isAborted && timeout < REQUEST_SECONDS; // by the deadline of the flush
    // A flush claims its next upload in the transaction of the result, so that each upload costs one write and not
    // two. It does so only if there is time to send the upload before the claim ends.
    const continues = tried && deadline - readMonotonicClock() > CLAIM_SECONDS;
    const [step, next] = await this.#context.update((documents) => {
      const step = this.#recordResponse(documents, claimed, response, failure, isCutShort);
      const queued = queuedCount(documents.spool);
      const claimsNext = continues && queued && step.reason === "sent" && !options.isOver;
      const next = claimsNext ? this.#claim(documents, new Set([...tried, claimed.id])) : undefined;
      return /** @type {const} */ ([{ ...step, queued }, next]);
    }, continues);
    if (next && "body" in next) this.#claimed = next;
    return step;
  }

  /** Forget the claimed upload, because the person has refused a metric, which may be that of the upload. */
  dropClaim() {
    this.#claimed = undefined;
  }

  /**
   * Send an upload while the page ends. The page does not see the response, so a later page sends the upload once
   * more, under the same id.
   *
   * Nothing is sent if the upload is too old, if its metric is stopped, if the collector has asked to wait or has
   * failed, or if the upload was prepared in an earlier interval: another tab may have sent a report of this interval
   * since.
   * @param {Device} device record of the last transaction; a page that ends cannot read the store
   * @param {QueuedUpload} upload that `endUploadOf` returned
   */
  async sendAtPageEnd(device, upload) {
    const { clock, transport } = this.#context;
    const now = clock();
    const { interval } = upload;
    const isOfEarlierInterval = intervalAt(interval, now).ends !== intervalAt(interval, upload.first).ends;
    const isStopped = stoppedUntil(device, upload.metric, now);
    if (isTooOld(upload, now) || hasMissedEpoch(upload, now) || isStopped || isOfEarlierInterval) return;
    if (findWait(device, upload, now, 0, false)) return;
    await transport.send(upload.body, {});
  }

  /**
   * Return the upload that leaves if the page ends now, undefined if no report may leave now.
   *
   * The upload must be in the store before the page ends, because a page that ends can write nothing. It is built in
   * advance and dated with the present: if the page ends, the seven days of the upload have begun.
   * @param {Required<Documents>} documents
   * @param {QueuedUpload | undefined} before the result of the last call
   * @returns {QueuedUpload | undefined}
   */
  endUploadOf({ device, spool }, before) {
    const now = this.#context.clock();
    const untried = spool.uploads.find(({ id, attempts }) => id === before?.id && !attempts);
    if (untried || spool.uploads.length >= MAX_TRIED) return untried;
    const report = findFreeReport(spool, now, now, this.#cooldowns(device, spool, now, false));
    return report && Object.assign(buildUpload(spool, report), { first: now });
  }

  /**
   * Send the body of an upload; return the response of the collector, or the name of the failure. A transport of the
   * host program may raise anything, and never ends the client.
   * @param {string} body
   * @param {number} timeout
   * @returns {Promise<{ response?: TransportResponse, failure?: string, isAborted?: boolean }>} `isAborted`: the timeout,
   *   or the end of the client, has ended the request
   */
  async #send(body, timeout) {
    const exchange = new AbortController();
    const { signal } = exchange;
    this.#exchange = exchange;
    const abort = () => exchange.abort(new DOMException("", "TimeoutError"));
    const timer = setTimeout(abort, 1000 * timeout);
    try {
      const aborted = new Promise((_, reject) => {
        signal.onabort = () => reject(signal.reason); // for a transport that ignores its signal
      });
      const response = await Promise.race([this.#context.transport.send(body, { signal }), aborted]);
      return { response };
    } catch (error) {
      return { failure: error instanceof Error ? error.name : "error", isAborted: signal.aborted };
    } finally {
      clearTimeout(timer);
    }
  }

  /**
   * Claim the upload to send now and return it, or return a step that only waits. This is the work of a transaction:
   * it also moves finished reports into the spool and gives up what is too late.
   * @param {Required<Documents>} documents
   * @param {Set<string> | undefined} tried ids of the uploads that this flush has tried; undefined in the background
   * @param {boolean} [isBacklog]
   * @returns {QueuedUpload | Step}
   */
  #claim(documents, tried, isBacklog) {
    const { device, spool, log } = documents;
    const { clock, coins, limits, prepare } = this.#context;
    const now = clock();
    prepare(documents);
    releasePendingReports(device, spool, now, coins);
    trimSpool(device, spool, limits);
    limitDelay(spool, now + WEEK); // the longest interval; no report waits longer for its random time
    const stopOf = (/** @type {{ metric: string }} */ { metric }) => stoppedUntil(device, metric, now);
    const mayLeave = (/** @type {{ metric: string }} */ item) => !stopOf(item); // also for an upload
    const isGivenUp = (/** @type {QueuedUpload} */ upload) => isTooOld(upload, now) || hasMissedEpoch(upload, now);
    for (const { id } of spool.uploads.filter(isGivenUp)) {
      recordResult(device, spool, log, id, "given_up", { now, limits });
    }
    const cooldowns = this.#cooldowns(device, spool, now, Boolean(tried ?? isBacklog));
    const next = chooseNext(device, spool, now, tried, mayLeave, cooldowns);
    if (!next) {
      const times = spool.reports.map(({ metric, sendAfter }) => {
        const earliest = tried ? 0 : sendAfter; // a flush does not wait for the random time of a report
        return Math.max(cooldowns.get(metric) ?? sendAfter, earliest);
      });
      times.push(...spool.uploads.map(stopOf));
      const queued = [...spool.reports, ...spool.uploads];
      const isStopped = queued.length && !queued.some(mayLeave);
      return { nextAt: Math.min(nextEnd(device), ...times), reason: isStopped ? "asked to wait" : undefined };
    }
    const { metric, id, backoff = 0 } = /** @type {QueuedUpload} */ (next); // a report has no id and backoff
    const isUntried = tried && !tried.has(id);
    const isFirstOfFlush = tried?.size === 0;
    const wait = findWait(device, next, now, isUntried ? 0 : backoff, isFirstOfFlush);
    if (wait) return wait;
    const upload = "id" in next ? next : buildUpload(spool, next);
    if (isFirstImplausible(upload, now)) upload.first = now;
    upload.attempts += 1;
    upload.claimed = now + CLAIM_SECONDS;
    // A clock that was set back must not date an attempt before an earlier one: the cooldown would end early, and two
    // reports would leave in one interval. A date far ahead was stored while the clock was wrong.
    const [lastAttempt] = getOwnEntry(spool.last, metric) ?? [0];
    const isWrong = isFarAhead(intervalAt(upload.interval, lastAttempt), now);
    // The second number is the random part of the next interval that passes after the cooldown.
    spool.last[metric] = [isWrong ? now : Math.max(lastAttempt, now), coins(1)[0] / ONE];
    return { ...upload };
  }

  /**
   * Return the time until which a new report of each metric waits. A metric without an entry does not wait. Reports
   * that are too late are given up first.
   *
   * - A stopped metric waits until the stop is over.
   * - A metric with an upload waits for the result of the upload.
   * - After an attempt a metric waits until the interval of the attempt is over. With `interval = "epoch"` it waits
   *   until the epoch is over; the entry then is the end of the present day, so that the sender looks again every day.
   * - A report that was finished before the cooldown ended waits for a random time of the next interval as well, unless
   *   a flush or the backlog is sent. The random part ends before the report is given up.
   * @param {Device} device
   * @param {Spool} spool
   * @param {number} now
   * @param {boolean} ignoreRandomPart
   * @returns {Map<string, number>}
   */
  #cooldowns(device, spool, now, ignoreRandomPart) {
    giveUpLateReports(device, spool, now);
    giveUpOldReports(device, spool, now - IMPLAUSIBLE_SECONDS, now - GIVE_UP_SECONDS);
    const { reports, uploads } = spool;
    const cooldowns = new Map();
    // The oldest report of each metric decides. Without a stored epoch the shortest one is assumed.
    const oldestFirst = [...reports].sort((a, b) => a.sendAfter - b.sendAfter);
    for (const { metric, sendAfter, interval, epoch = "month" } of oldestFirst) {
      if (cooldowns.has(metric)) continue;
      const stop = stoppedUntil(device, metric, now);
      const attempt = getOwnEntry(spool.last, metric);
      if (stop) cooldowns.set(metric, stop);
      else if (uploads.some((upload) => upload.metric === metric)) cooldowns.set(metric, Infinity);
      else if (attempt) {
        const [lastAttempt, part] = attempt;
        const isSameEpoch = epochAt(epoch, dayOf(lastAttempt)) === epochAt(epoch, dayOf(now));
        const reference = interval === "epoch" && isSameEpoch ? now : lastAttempt;
        const cooldown = intervalAt(interval, reference);
        if (isFarAhead(cooldown, now)) continue; // the attempt was dated by a wrong clock
        const { ends, seconds } = cooldown;
        const longestPart = Math.min(seconds, Math.max(sendAfter + GIVE_UP_SECONDS - ends, 0));
        const hasRandomPart = sendAfter < ends && !ignoreRandomPart;
        cooldowns.set(metric, hasRandomPart ? ends + part * longestPart : ends);
      }
    }
    return cooldowns;
  }

  /**
   * Record the result of an attempt and return the step.
   * @param {Required<Documents>} documents
   * @param {QueuedUpload} upload
   * @param {TransportResponse | undefined} response
   * @param {string | undefined} failure name of the failure, without a response
   * @param {boolean | undefined} isCutShort whether the deadline of a flush ended the request: the collector has not
   *   failed, so nothing backs off
   * @returns {Step}
   */
  #recordResponse({ device, spool, log }, { id }, response, failure, isCutShort) {
    const { clock, limits } = this.#context;
    const now = clock();
    const result = response && readResponse(response);
    const finish = (/** @type {string} */ status) => {
      recordResult(device, spool, log, id, status, { now, limits });
      device.sending = { failures: 0, waitUntil: 0, pauseUntil: 0 };
    };
    if (result) {
      finish(result.status);
      followStops(device, result.stop, dayOf(now));
      const reason = result.status === "accepted" ? "sent" : "refused";
      return { nextAt: now, reason, detail: result.status, id };
    }
    const { status = 0 } = response ?? {};
    const detail = response ? `status ${status}` : failure;
    if (FINAL_STATUS.includes(status)) {
      finish(`refused: ${detail}`);
      return { nextAt: now, reason: "refused", detail, id };
    }
    // The upload may be gone: another tab has recorded a result, or the person has refused the metric.
    const stored = spool.uploads.find((upload) => upload.id === id);
    if (stored) Object.assign(stored, { claimed: 0, backoff: now });
    const nextAt = isCutShort ? now : this.#backOff(device, stored, response, now);
    return { nextAt, reason: response ? "collector error" : "unreachable", detail, id };
  }

  /**
   * Let a failed upload back off, and let the other uploads pause if they would probably fail as well.
   *
   * - No response: the network or the collector is down, and all uploads pause.
   * - A first error response: it may concern this upload alone, and the others go on.
   * - A second failure in a row: all uploads pause.
   * @param {Device} device
   * @param {QueuedUpload | undefined} upload
   * @param {TransportResponse | undefined} response
   * @param {number} now
   * @returns {number} time of the next step
   */
  #backOff({ sending }, upload, response, now) {
    const retryAfter = Number(response?.retryAfter) || 0; // a transport of the host program may return anything
    // Together with a backoff the wait is at most MAX_WAIT_SECONDS, or it would read as one of a wrong clock.
    const seconds = Math.min(Math.max(retryAfter, 0), MAX_WAIT_SECONDS - MAX_BACKOFF_SECONDS);
    sending.waitUntil = now + seconds;
    if (upload) upload.backoff = sending.waitUntil + this.#delay(upload.attempts);
    sending.failures += 1;
    if (response && sending.failures === 1) return sending.waitUntil;
    sending.pauseUntil = sending.waitUntil + this.#delay(sending.failures - 1);
    return sending.pauseUntil;
  }

  /**
   * Draw a random delay, uniform up to a limit that doubles with each attempt. Without the randomness all devices would
   * come back at once after an outage.
   * @param {number} attempts
   */
  #delay(attempts) {
    const limit = Math.min(FIRST_BACKOFF_SECONDS * 2 ** attempts, MAX_BACKOFF_SECONDS);
    return (this.#context.coins(1)[0] / ONE) * limit;
  }
}

/**
 * Return the upload or finished report to send next, undefined if there is none. The first of these:
 *
 * 1. the oldest upload whose backoff is over; after a failure it follows the finished report, so that uploads that
 *    always fail hold up no other;
 * 2. the oldest finished report that may leave;
 * 3. an upload that this flush has not tried;
 * 4. the upload whose backoff ends first; the caller then waits for it.
 *
 * Stopped metrics, and finished reports of a metric in its cooldown, are left out.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 * @param {Set<string> | undefined} tried
 * @param {(upload: { metric: string }) => boolean} mayLeave
 * @param {Map<string, number>} cooldowns
 */
function chooseNext({ sending }, spool, now, tried, mayLeave, cooldowns) {
  const uploads = spool.uploads.filter(mayLeave);
  const ready = uploads.find(({ backoff }) => !isAhead(backoff, now, MAX_WAIT_SECONDS));
  const hasRoom = uploads.length < MAX_TRIED;
  const report = hasRoom && findFreeReport(spool, tried ? Infinity : now, now, cooldowns);
  const untried = tried && uploads.find(({ id }) => !tried.has(id));
  const soonest = uploads.sort((a, b) => a.backoff - b.backoff)[0];
  return (!sending.failures && ready) || report || ready || untried || soonest;
}

/**
 * Return the oldest finished report that may leave: its random time has come, and its metric has no cooldown.
 * @param {Spool} spool
 * @param {number} latest largest random time; infinity for a flush, which ignores it
 * @param {number} now
 * @param {Map<string, number>} cooldowns
 * @returns {FinishedReport | undefined}
 */
function findFreeReport({ reports }, latest, now, cooldowns) {
  return reports.find(
    ({ sendAfter, metric }) => sendAfter <= latest && (cooldowns.get(metric) ?? 0) <= now,
  );
}

/**
 * Return a step that waits for an upload; undefined if the upload may be sent now.
 * @param {Device} device
 * @param {Partial<QueuedUpload>} upload a finished report has no claim
 * @param {number} now
 * @param {number} backoff end of the upload's backoff, 0 to ignore it
 * @param {boolean} ignorePause
 * @returns {Step | undefined}
 */
function findWait({ sending }, { claimed = 0 }, now, backoff, ignorePause) {
  if (isAhead(claimed, now, CLAIM_SECONDS)) return { nextAt: claimed, reason: "busy" };
  if (isAhead(sending.waitUntil, now, MAX_WAIT_SECONDS)) {
    return { nextAt: sending.waitUntil, reason: "asked to wait" };
  }
  const until = Math.max(backoff, ignorePause ? 0 : sending.pauseUntil);
  return isAhead(until, now, MAX_WAIT_SECONDS) ? { nextAt: until } : undefined;
}

/**
 * Return whether a stored time is ahead, and not further ahead than the longest wait of its kind. A time beyond it was
 * stored before the clock was set back.
 * @param {number} time
 * @param {number} now
 * @param {number} longest
 */
function isAhead(time, now, longest) {
  return now < time && time <= now + longest;
}

/**
 * Return whether an upload of `interval = "epoch"` is late, because its epoch has ended.
 * @param {QueuedUpload} upload
 * @param {number} now
 */
function hasMissedEpoch({ leavesBefore = Infinity }, now) {
  return now >= leavesBefore;
}

/**
 * Return whether an upload is given up, because its first attempt was more than seven days ago.
 * @param {QueuedUpload} upload
 * @param {number} now
 */
function isTooOld(upload, now) {
  return !isFirstImplausible(upload, now) && now > upload.first + GIVE_UP_SECONDS;
}

/**
 * Return whether the first attempt of an upload has no plausible date: there was no attempt, or the clock was wrong
 * then or is wrong now. The seven days then begin anew.
 * @param {QueuedUpload} upload
 * @param {number} now
 */
function isFirstImplausible({ first }, now) {
  return !(first && first <= now && now - first <= IMPLAUSIBLE_SECONDS);
}

/**
 * Read the response of a collector: {"reports": [{"status": "accepted"}], "stop": {...}}. Return undefined for an error
 * response, and for a response that is truncated or has another form: the upload is then sent again.
 * @param {TransportResponse} response
 * @returns {{ status: string, stop: unknown } | undefined} status of the report, and the stops that are requested
 */
function readResponse({ status, body }) {
  if (Math.floor(status / 100) !== 2) return undefined;
  try {
    const { reports, stop } = JSON.parse(body);
    const [{ status: reportStatus, reason }] = reports;
    if (reports.length !== 1 || reportStatus === undefined) return undefined;
    if (reportStatus === "accepted") return { status: reportStatus, stop };
    // The reason enters the log, which a person reads. A text that is no word of a collector does not enter it.
    const word = typeof reason === "string" && NAME.test(reason) ? reason : "no reason given";
    return { status: `refused: ${word}`, stop };
  } catch {
    return undefined;
  }
}
