// The uploader: chooses which report may leave now, sends it once, and records the result.
//
// `Uploader.step` makes one step, with one attempt to send at most. A step never sleeps and starts no timer. It returns
// the time of the next step. Two callers wait for this time and make the steps: the background sender (background.js),
// and a flush (Client.flush).
//
// The life of a finished report, whose interval has ended:
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
// - The upload and its id are in the store before the upload leaves. So a retry sends the same bytes under the same id,
//   and a collector that gets them twice counts them once.
// - At most one report of a metric leaves the device in an interval, also after days without network. The collector
//   counts devices by counting reports, so its protection depends on this limit.
// - The time of an upload does not reveal the time of its event. A flush is the exception: it ignores sendAfter,
//   because the program may not run again.
//
// Seven waits can delay a report:
//
//     wait           delays         for                                          ignored by
//     sendAfter      a report       a random time of the next interval           a flush
//     claim          an upload      2 s, in which another tab may be sending     never
//                                   the upload
//     backoff        an upload      a random time after a failure, at most 1 h   a flush, for uploads that it has not
//                                                                                tried
//     pause          all uploads    a random time after failures in a row        the first attempt of a flush
//     Retry-After    all uploads    the time that the collector requests, at     never
//                                   most 23 h
//     cooldown       a metric       the rest of the interval of its last         never
//                                   attempt
//     spread         a metric       after a cooldown, a random part of the       a flush, and the backlog (the reports
//                                   next interval                                that an earlier page left)
//
// Where the waits are set and read:
//
//     sendAfter                     `queueEndedReports` (admission.js) draws it, `chooseUpload` reads it
//     claim                         `#claim` sets it, `findWait` (backoff.js) reads it
//     backoff, pause, Retry-After   backoff.js
//     cooldown, spread              cooldowns.js
//
// The collector can also stop a metric for some days (stops.js).
//
// A step in its order:
//
// 1. In one transaction (#claim): queue the reports of ended intervals, give up late reports and uploads, choose a
//    report or an upload, claim it. If nothing may be sent now, the step ends, and returns the time of the next step.
// 2. Without a transaction (#send): send the upload.
// 3. In a second transaction (#recordResponse): record the result, or the waits after a failure. A flush claims its
//    next upload in this transaction, too, so that each upload costs one write and not two.
//
// Example: a daily metric, and a device without network from October 3 to 5.
//
//     Oct 2            an event. Its report gets sendAfter = Oct 3, 14:00
//     Oct 3, 4         events. Their reports get sendAfter = Oct 4, 09:00 and Oct 5, 20:00
//     Oct 5, 08:00     online. The report of Oct 2 leaves. The cooldown ends on Oct 6, 00:00
//     Oct 6, 06:00     the report of Oct 3 leaves. Its sendAfter came before the end of the cooldown, so it is spread
//                      over Oct 6 (here by a quarter of the day). A flush would have sent it at 00:00
//     Oct 7, ...       the report of Oct 4
//
// Clocks may be wrong. An upload whose first attempt is in the future, or more than a year ago, is not given up: one of
// the two clock readings is wrong.

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
 * @property {number} nextAt time of the next step, infinity if nothing waits for a time
 * @property {FlushReason} [reason] result of the attempt, or the reason why nothing may be sent; undefined if nothing
 *   is queued, or if all queued reports only wait for their times
 * @property {string} [detail] status of the report, HTTP status, or name of the failure
 * @property {string} [id] id of the upload that was sent; undefined without an attempt
 * @property {number} [queued] number of reports that are still queued
 */

/**
 * Options of the steps of a flush. The flush adds ids to `tried` after its steps, and sets `isOver` when it returns.
 * @typedef {object} FlushOptions
 * @property {number} deadline end of the flush, on the monotonic clock in seconds
 * @property {Set<string>} tried ids of the uploads that the flush has tried
 * @property {boolean} isOver whether the flush has returned. A step that was waiting for the store then sends nothing
 */

/** @typedef {Partial<FlushOptions> & { isBacklog?: boolean }} StepOptions `isBacklog`: the step may send the backlog, the reports that an earlier page left */

/**
 * The parts of the client that an uploader uses.
 * @typedef {object} UploaderContext
 * @property {<T>(work: (documents: Required<Documents>) => T, strict?: boolean) => Promise<T>} update
 *   runs work on the documents of this identity in one transaction, and returns its result; rejects if the store fails
 * @property {Transport} transport
 * @property {import("../index.js").Clock} clock
 * @property {import("../index.js").Coins} coins
 * @property {import("../index.js").QueueLimits} limits
 * @property {(documents: Required<Documents>) => void} prepare drops the reports of the metrics that the person
 *   refuses. It is called before an upload is chosen
 * @property {(metric: string) => boolean} isRefused returns whether the person refuses a metric at this moment
 */

/**
 * Longest duration of one request, in seconds. With a larger number, slower collectors are reached, and all other
 * uploads wait longer for a request that hangs.
 */
const REQUEST_SECONDS = 30;
/**
 * Largest number of uploads without a result whose metric is not stopped. While so many are queued, no finished report
 * becomes an upload: the collector has accepted none of them, so it would probably not accept further reports either.
 * The oldest finished reports are dropped if there are too many (`trimSpool`), and uploads are not. So a larger number
 * fills the store more.
 */
const MAX_TRIED = 20;

/** Sends the uploads of one device through one transport. */
export class Uploader {
  /** @type {UploaderContext} */
  #context;
  #isClosed = false;
  /** @type {AbortController | undefined} aborts the request under way */ #exchange;
  /**
   * The next upload of a flush, which was claimed in the transaction of the last result. Its property `claimed` is the
   * time at which the claim ends.
   * @type {QueuedUpload | undefined}
   */
  #claimed;

  /** @param {UploaderContext} context */
  constructor(context) {
    this.#context = context;
  }

  /** Abort the request under way, and send nothing more: the client is closed, or consent is withdrawn. */
  close() {
    this.#isClosed = true;
    this.#exchange?.abort();
  }

  /**
   * Make one step: claim an upload in one transaction, send it without a transaction, and record its result in another
   * transaction. The head of this module describes a step.
   * @param {StepOptions} options of a flush; without `tried` the step is one of the background sender
   * @returns {Promise<Step>}
   */
  async step(options = {}) {
    const { deadline = Infinity, tried, isBacklog } = options;
    if (this.#isClosed) return { nextAt: Infinity };
    const { clock, isRefused } = this.#context;
    const isStillClaimed = this.#claimed && clock() < this.#claimed.claimed;
    const claim = (/** @type {Required<Documents>} */ documents) => this.#claim(documents, tried, isBacklog);
    // Strict, because the claim must be on the disk before the upload leaves. If it was lost with the power, the report
    // would still be a finished one, and would leave a second time under a new id.
    const claimed = (isStillClaimed && this.#claimed) || (await this.#context.update(claim, true));
    this.#claimed = undefined;
    // The client may have been closed, or the flush may have ended, while the store was busy.
    if (this.#isClosed || options.isOver) return { nextAt: Infinity };
    if (!("body" in claimed)) return claimed; // no upload may be sent now: the result is a step
    // Bad case: the person has refused the metric since the transaction of the claim. The next claim drops the upload.
    if (isRefused(claimed.metric)) return { nextAt: clock() };
    const timeout = Math.min(Math.max(deadline - readMonotonicClock(), 0.001), REQUEST_SECONDS);
    const { response, failure, isAborted } = await this.#send(claimed.body, timeout);
    if (this.#isClosed) return { nextAt: Infinity };
    const isCutShort = isAborted && timeout < REQUEST_SECONDS; // the deadline of the flush has ended the request
    // A flush claims its next upload in the transaction of the result, unless its deadline comes too soon. An upload
    // that is claimed and not sent would wait for the end of its claim.
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

  /**
   * Send an upload while the page ends. The page does not see the response, so a later page sends the upload once
   * more, under the same id, and the collector counts it once.
   *
   * Nothing is sent in these cases:
   *
   * - The upload is too old, or the collector has stopped its metric.
   * - The collector has failed, or has asked for a wait that is not over.
   * - The upload was prepared in an earlier interval. Another tab may have sent a report of the present interval since,
   *   and this page cannot read the store any more.
   * @param {Device} device record of the last transaction
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
   * A page that ends can write nothing, so the upload is built and stored in advance, in every transaction. Its `first`
   * is the present time, because it may leave at any moment from now on: the seven days until it is given up have
   * begun.
   * @param {Required<Documents>} documents
   * @param {QueuedUpload | undefined} before the result of the last call. It is returned again until it is sent or gone
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
   * Send the body of an upload. Return the response of the collector, or the name of the failure. The method never
   * raises, even if the transport of the host program raises.
   * @param {string} body
   * @param {number} timeout
   * @returns {Promise<{ response?: TransportResponse, failure?: string, isAborted?: boolean }>} `isAborted`: the
   *   timeout, or `close`, has ended the request
   */
  async #send(body, timeout) {
    const exchange = new AbortController();
    const { signal } = exchange;
    this.#exchange = exchange;
    const abort = () => exchange.abort(new DOMException("", "TimeoutError"));
    const timer = setTimeout(abort, 1000 * timeout);
    try {
      // One promise is rejected both by the transport and by the abort. With a second promise for the abort, a
      // transport that raised at once, in place of returning a promise, left the second one without a handler: a later
      // `close` rejected it, and Node ended the program because of an unhandled rejection.
      const response = await new Promise((resolve, reject) => {
        signal.onabort = () => reject(signal.reason); // for a transport that ignores its signal
        Promise.resolve(this.#context.transport.send(body, { signal })).then(resolve, reject);
      });
      return { response };
    } catch (error) {
      return { failure: error instanceof Error ? error.name : "error", isAborted: signal.aborted };
    } finally {
      clearTimeout(timer);
    }
  }

  /**
   * Choose the upload to send now, claim it, and return a copy of it. Return a step if no upload may be sent now. The
   * method runs inside a transaction, so no other tab claims the same upload.
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
    // `sendAfter` is in the interval that follows the event's, and the longest interval is a week. A `sendAfter` beyond
    // a week was computed while the clock was ahead.
    limitSendAfter(spool, now + WEEK);
    // The argument of both functions is a finished report or an upload.
    const stopOf = (/** @type {{ metric: string }} */ { metric }) => findStopEnd(device, metric, now);
    const mayLeave = (/** @type {{ metric: string }} */ item) => !stopOf(item);
    for (const { id } of spool.uploads.filter((upload) => isLate(upload, now))) {
      recordResult(device, spool, log, id, "given_up", { now, limits });
    }
    giveUpLateReports(device, spool, now);
    const cooldowns = findCooldowns(device, spool, now, tried ?? isBacklog);
    const next = chooseUpload(device, spool, now, tried, mayLeave, cooldowns);
    if (!next) {
      // No upload is left, or the metrics of all uploads are stopped. The next step is at the earliest of these times:
      // a finished report may leave, a stop ends, an interval ends.
      const times = spool.reports.map(({ metric, sendAfter }) => {
        const earliest = tried ? 0 : sendAfter; // a flush does not wait for the random time of a report
        return Math.max(cooldowns.get(metric) ?? sendAfter, earliest);
      });
      times.push(...spool.uploads.map(stopOf));
      const queued = [...spool.reports, ...spool.uploads];
      const isStopped = queued.length && !queued.some(mayLeave);
      return { nextAt: Math.min(findNextEnd(device), ...times), reason: isStopped ? "asked to wait" : undefined };
    }
    const { id, backoff = 0 } = /** @type {QueuedUpload} */ (next); // a finished report has neither
    // A flush tries each upload once without regard to its backoff, and its first attempt without regard to the pause:
    // the host program asks for an attempt now. Further attempts wait, or a flush would send to a failing collector all
    // the time.
    const isUntried = tried && !tried.has(id);
    const isFirstOfFlush = tried?.size === 0;
    const wait = findWait(device, next, now, isUntried ? 0 : backoff, isFirstOfFlush);
    if (wait) return wait;
    const upload = "id" in next ? next : buildUpload(spool, next);
    // There was no attempt yet, or one of the two clock readings is wrong. The seven days until the upload is given up
    // begin now.
    if (isImplausible(upload, now)) upload.first = now;
    upload.attempts += 1;
    upload.claimed = now + CLAIM_SECONDS;
    recordAttempt(spool, upload, now, coins);
    return { ...upload };
  }

  /**
   * Record the result of an attempt, or set the waits after a failure, and return the step. upload_response.js lists
   * the responses and their results.
   * @param {Required<Documents>} documents
   * @param {QueuedUpload} upload the upload that was sent
   * @param {TransportResponse | undefined} response undefined if no response came
   * @param {string | undefined} failure name of the failure, if no response came
   * @param {boolean | undefined} isCutShort whether the deadline of a flush ended the request. The collector had less
   *   than REQUEST_SECONDS to respond, so this is no failure of the collector, and nothing waits because of it
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
    // The attempt has failed. The claim ends, so that the upload waits for its backoff only. The upload may be gone
    // from the spool: another tab has recorded a result, or the person has refused the metric.
    const stored = spool.uploads.find((upload) => upload.id === id);
    if (stored) Object.assign(stored, { claimed: 0, backoff: now });
    const nextAt = isCutShort ? now : backOff(device, stored, response, now, coins);
    return { nextAt, reason: response ? "collector error" : "unreachable", detail, id };
  }
}

/**
 * Return the upload or finished report to send next, undefined if there is none. It is the first of these that exists:
 *
 * 1. the oldest upload whose backoff is over, if the last attempt of any upload had a result;
 * 2. the oldest finished report that may leave, if fewer than MAX_TRIED uploads are queued;
 * 3. the oldest upload whose backoff is over, after a failure. It comes after the finished report. Otherwise some
 *    uploads that always fail would take all attempts, and no other report would ever leave;
 * 4. an upload that this flush has not tried;
 * 5. the upload whose backoff ends first. The caller then waits for it.
 *
 * Uploads and reports of stopped metrics, and finished reports of a metric in its cooldown, are left out.
 * @param {Device} device
 * @param {Spool} spool
 * @param {number} now
 * @param {Set<string> | undefined} tried ids of the uploads that this flush has tried; undefined in the background
 * @param {(upload: { metric: string }) => boolean} mayLeave returns whether the metric of an upload is not stopped
 * @param {Map<string, number>} cooldowns by metric, the time until which finished reports wait. It includes the stops
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
 * Return the oldest finished report that may leave: its `sendAfter` has come, and the cooldown of its metric is over.
 * @param {Spool} spool
 * @param {number} latest largest `sendAfter`: the present time, or infinity for a flush, which ignores `sendAfter`
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
 * Return whether an upload must be given up: its epoch has ended (`interval = "epoch"`), or its first attempt has a
 * plausible time and was more than seven days ago. After more time the collector may have forgotten the id of the
 * upload, and would count the report twice.
 * @param {QueuedUpload} upload
 * @param {number} now
 */
function isLate(upload, now) {
  const { first, leavesBefore = Infinity } = upload;
  return now >= leavesBefore || (!isImplausible(upload, now) && now > first + GIVE_UP_SECONDS);
}

/**
 * Return whether the time of an upload's first attempt is not plausible: there was no attempt, or the time is in the
 * future or more than a year ago. In the last two cases the clock was wrong then, or is wrong now.
 * @param {QueuedUpload} upload
 * @param {number} now
 */
function isImplausible({ first }, now) {
  return !(first && first <= now && now - first <= IMPLAUSIBLE_SECONDS);
}
