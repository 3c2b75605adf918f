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
// - At most one report of a metric leaves the device in an interval, also after days without network. The collector
//   counts devices by counting reports, so its protection depends on this limit.
// - The time of an upload does not reveal the time of its event.
//
// Seven waits can delay a report:
//
//     wait           delays         for                                          ignored by
//     sendAfter      a report       a random time of the next interval           a flush
//     claim          an upload      2 s, in which another tab may be sending     never
//                                   the upload
//     backoff        an upload      a random time after a failure, at most 1 h   a flush, for uploads that this flush has
//                                                                                not tried
//     pause          all uploads    a random time after failures in a row        the first attempt of a flush
//     Retry-After    all uploads    the time that the collector requests, at     never
//                                   most 23 h
//     cooldown       a metric       the rest of the interval of its last         never
//                                   attempt
//     spread         a metric       after a cooldown, a random part of the       a flush, and reports that an earlier page
//                                   next interval                                left (the backlog)
//
// admission.js draws sendAfter. backoff.js has claim, backoff, pause and Retry-After, and cooldowns.js has cooldown and
// spread. The collector can also stop a metric for some days (stops.js).
//
// A step in its order:
//
// 1. In one transaction (#claim): queue the reports of ended intervals, give up late reports, choose a report or an
//    upload, claim it. If nothing may be sent now, the step ends, and returns the time of the next step.
// 2. Without a transaction (#send): send the upload.
// 3. In a second transaction (#recordResponse): record the result, or the waits after a failure. A flush claims its next
//    upload in this transaction, too, so that each upload costs one write and not two.
//
// Clocks may be wrong. A first attempt that is in the future, or more than a year ago, does not give an upload up.

import { findNextEnd, queueEndedReports } from "./admission.js";
import { CLAIM_SECONDS, backOff, findWait, isBackingOff } from "./backoff.js";
import { readMonotonicClock } from "./background.js";
import { findCooldowns, recordAttempt } from "./cooldowns.js";
import { WEEK, dayOf, findInterval } from "./periods.js";
import { GIVE_UP_SECONDS, IMPLAUSIBLE_SECONDS, buildUpload, countQueued, giveUpLateReports, limitSendAfter, recordResult, trimSpool } from "./spool.js";
import { findStopEnd, followStops } from "./stops.js";
import { PERMANENT_STATUSES, readResponse } from "./upload_response.js";

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

/** Longest duration of one request, in seconds. A larger number reaches slower collectors and delays other uploads. */
const REQUEST_SECONDS = 30;
/**
 * Largest number of uploads without a result. While so many wait, no finished report becomes an upload: the collector
 * answers each upload with an error, so further reports would only get errors, too.
 */
const MAX_TRIED = 20;

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
      const queued = countQueued(documents.spool);
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
   * @param {QueuedUpload} upload that `prepareEndUpload` returned
   */
  async sendAtPageEnd(device, upload) {
    const { clock, transport } = this.#context;
    const now = clock();
    const { interval } = upload;
    const isOfEarlierInterval = findInterval(interval, now).ends !== findInterval(interval, upload.first).ends;
    const isStopped = findStopEnd(device, upload.metric, now);
    if (isLate(upload, now) || isStopped || isOfEarlierInterval) return;
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
  prepareEndUpload({ device, spool }, before) {
    const now = this.#context.clock();
    const untried = spool.uploads.find(({ id, attempts }) => id === before?.id && !attempts);
    if (untried || spool.uploads.length >= MAX_TRIED) return untried;
    giveUpLateReports(device, spool, now);
    const report = findUntried(spool, now, now, findCooldowns(device, spool, now));
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
   * Claim the upload to send now and return a copy of it, or return a step without an attempt. This is the work of a
   * transaction, so no other tab claims the same upload.
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
    queueEndedReports(device, spool, now, coins);
    trimSpool(device, spool, limits);
    // The longest interval is a week. A later sendAfter was computed while the clock was ahead.
    limitSendAfter(spool, now + WEEK);
    // Both functions take a finished report or an upload.
    const stopOf = (/** @type {{ metric: string }} */ { metric }) => findStopEnd(device, metric, now);
    const mayLeave = (/** @type {{ metric: string }} */ item) => !stopOf(item);
    for (const { id } of spool.uploads.filter((upload) => isLate(upload, now))) {
      recordResult(device, spool, log, id, "given_up", { now, limits });
    }
    giveUpLateReports(device, spool, now);
    const cooldowns = findCooldowns(device, spool, now, tried ?? isBacklog);
    const next = chooseUpload(device, spool, now, tried, mayLeave, cooldowns);
    if (!next) {
      const times = spool.reports.map(({ metric, sendAfter }) => {
        const earliest = tried ? 0 : sendAfter; // a flush does not wait for the random time of a report
        return Math.max(cooldowns.get(metric) ?? sendAfter, earliest);
      });
      times.push(...spool.uploads.map(stopOf));
      const queued = [...spool.reports, ...spool.uploads];
      const isStopped = queued.length && !queued.some(mayLeave);
      return { nextAt: Math.min(findNextEnd(device), ...times), reason: isStopped ? "asked to wait" : undefined };
    }
    const { id, backoff = 0 } = /** @type {QueuedUpload} */ (next); // a report has no id and backoff
    const isUntried = tried && !tried.has(id);
    const isFirstOfFlush = tried?.size === 0;
    const wait = findWait(device, next, now, isUntried ? 0 : backoff, isFirstOfFlush);
    if (wait) return wait;
    const upload = "id" in next ? next : buildUpload(spool, next);
    // One of the two clock readings is wrong. The week until the upload is given up begins anew.
    if (isImplausible(upload, now)) upload.first = now;
    upload.attempts += 1;
    upload.claimed = now + CLAIM_SECONDS;
    recordAttempt(spool, upload, now, coins);
    return { ...upload };
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
    const { clock, coins, limits } = this.#context;
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
    if (PERMANENT_STATUSES.includes(status)) {
      finish(`refused: ${detail}`);
      return { nextAt: now, reason: "refused", detail, id };
    }
    // The upload may be gone: another tab has recorded a result, or the person has refused the metric.
    const stored = spool.uploads.find((upload) => upload.id === id);
    if (stored) Object.assign(stored, { claimed: 0, backoff: now });
    const nextAt = isCutShort ? now : backOff(device, stored, response, now, coins);
    return { nextAt, reason: response ? "collector error" : "unreachable", detail, id };
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
function chooseUpload({ sending }, spool, now, tried, mayLeave, cooldowns) {
  const uploads = spool.uploads.filter(mayLeave);
  const ready = uploads.find((upload) => !isBackingOff(upload, now));
  const hasRoom = uploads.length < MAX_TRIED;
  const report = hasRoom && findUntried(spool, tried ? Infinity : now, now, cooldowns);
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
function findUntried({ reports }, latest, now, cooldowns) {
  return reports.find(
    ({ sendAfter, metric }) => sendAfter <= latest && (cooldowns.get(metric) ?? 0) <= now,
  );
}

/**
 * Return whether an upload is given up: its epoch has ended (`interval = "epoch"`), or its first attempt was more than
 * seven days ago by a plausible clock.
 * @param {QueuedUpload} upload
 * @param {number} now
 */
function isLate(upload, now) {
  const { first, leavesBefore = Infinity } = upload;
  return now >= leavesBefore || (!isImplausible(upload, now) && now > first + GIVE_UP_SECONDS);
}

/**
 * Return whether the first attempt of an upload has no plausible date: there was no attempt, or the clock was wrong
 * then or is wrong now. The seven days then begin anew.
 * @param {QueuedUpload} upload
 * @param {number} now
 */
function isImplausible({ first }, now) {
  return !(first && first <= now && now - first <= IMPLAUSIBLE_SECONDS);
}
