// The client: the object by which a page records values, shows a person the sent uploads, and withdraws consent.
//
// How a value goes through the client, for example with client.record("theme", "dark"):
//
//     record()        checks the value without the secret, and appends an event to memory. It never waits
//     #storeEvents    prepares the events (value_preparer.js: everything that needs the secret) and stores them in
//                     transactions (writer.js). The value is now a pending report, or was not chosen
//     Sender          makes a step of sending when a report may leave (background.js, uploader.js), usually on the day
//                     after the event
//     flush()         stores the events and makes such steps at once
//
// Nothing is sent before it is stored. A page that ends leaves the events that are not stored to the next page
// (deferred_events.js), and sends at most one finished report.
//
// The identity is the secret with its random name, `secretId`. A client opens or creates the identity once. If a later
// transaction finds another identity in the store, or none, consent was withdrawn elsewhere, and the client stops.
//
// The states of a client:
//
//     state         while                                            record() returns
//     enabled       there is consent, and the identity is open       recorded, or skipped for a reason of the metric
//     disabled      the identity cannot be opened: a store that      skipped ("disabled"). The next record() or flush()
//                   fails or is damaged, a page without https        tries to open the identity again
//     no consent    the person has not consented, or has             skipped ("no consent")
//                   withdrawn consent, perhaps in another tab
//
// Failures. Only mistakes of the host program raise: wrong options, a wrong registry, an unknown metric, a value of the
// wrong kind. All other failures, of storage, network or browser, end in #runSafely. They are counted, logged at most
// once a minute, and never reach the page.

import { hasEndedInterval, drawTag, findNextEnd, findSmallestTag, listPending } from "./admission.js";
import { LONGEST_SLEEP, Sender, readMonotonicClock } from "./background.js";
import { fromBase64url, toBase64url } from "./bytes.js";
import { STORE_PATIENCE, withDeadline } from "./deadline.js";
import { DeferredEvents } from "./deferred_events.js";
import { readValue } from "./encodings.js";
import { ParamsError, RapporError } from "./errors.js";
import { httpTransport } from "./http_transport.js";
import { indexedDbStore } from "./indexed_db_store.js";
import { loadNormalizers } from "./normalizers.js";
import { MEMORY_FULL, NOT_STORED, RECORDED, skipOutcome } from "./outcome.js";
import { boundClock, dayOf, yearOf } from "./periods.js";
import { privacySpent } from "./privacy_spent.js";
import { drawSystemCoins } from "./randomizer.js";
import { findMetric, readRegistry } from "./registry.js";
import { isReserved, findUnaffordable, updateLostYear } from "./reservation.js";
import { storeParams } from "./scopes.js";
import { SECRET_BYTES, importSecret } from "./secret.js";
import { countQueued, dropMetrics, sentUploads } from "./spool.js";
import { DamagedStoreError, addCount, createDevice, findLostYear } from "./state.js";
import { findStopEnd } from "./stops.js";
import { connectTabs } from "./tabs.js";
import { Uploader } from "./uploader.js";
import { ValuePreparer } from "./value_preparer.js";
import { drawId } from "./wire.js";
import { ALL, eraseStore, isConsistent } from "./withdrawal.js";
import { storeEvents } from "./writer.js";

/** @typedef {import("../index.js").FlushReason} FlushReason */
/** @typedef {import("../index.js").FlushResult} FlushResult */
/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").OpenOptions} OpenOptions */
/** @typedef {import("../index.js").Outcome} Outcome */
/** @typedef {import("../index.js").Registry} Registry */
/** @typedef {import("../index.js").SkipReason} SkipReason */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Documents} Documents */
/** @typedef {import("../documents.js").RecordedEvent} RecordedEvent */
/** @typedef {import("./uploader.js").Step} Step */
/** @typedef {import("./writer.js").ReadyEvent} ReadyEvent */
/** @typedef {{ secret: CryptoKey, secretId: string, preparer: ValuePreparer }} Identity */

/**
 * Options that every call needs, with their defaults filled in.
 * @typedef {object} ClientSettings
 * @property {import("../index.js").Coins} coins
 * @property {import("../index.js").Clock} clock bounded to the years 1970 to 9999
 * @property {import("../index.js").QueueLimits} limits
 * @property {{ total: number, per: "year" | "life" }} cap the budget cap, in nats
 * @property {OpenOptions["normalizers"]} normalizers
 */

const CHANGING_DOCUMENTS = ALL.slice(1); // all documents but the identity, which never changes
/**
 * Largest number of events in memory while the store does not respond. Further values are lost, and counted. With a
 * larger number, fewer values are lost, and the page needs more memory.
 */
const MAX_EVENTS_IN_MEMORY = 1000;
/**
 * Seconds until a store that has failed is tried again. With a smaller number, events are stored sooner after a
 * failure, and a store that fails for long costs more work.
 */
const RETRY_SECONDS = 10;
/** Smallest number of seconds between two log lines, so that a lasting failure does not fill the console. */
const WARN_SECONDS = 60;
/**
 * Seconds that a flush may take beyond its timeout, for the last transaction of the store. Then its result is "failed".
 */
const GRACE_SECONDS = 0.5;
/** @type {FlushReason[]} reasons of a flush after which nothing is queued: `done` is true for them */
const DONE_REASONS = ["nothing queued", "sent", "refused"];

/** Raised in a transaction if the identity that this client opened is gone from the store, or consent was withdrawn. */
class IdentityChanged extends Error {}

/**
 * The telemetry of one device in one store. All tabs with the store are one device. index.d.ts has the public names.
 */
export class Client {
  /** @type {Registry} */ #registry;
  /** @type {import("../index.js").Store} */ #store;
  /** @type {ClientSettings} */ #settings;
  /** @type {boolean} false after a withdrawal, also one in another tab */ #consent;
  /** @type {Set<string>} names of the metrics that the person refuses */ #refused = new Set();
  /** @type {Identity | undefined} */ #identity;
  /**
   * The state of the device after the last transaction of this tab, for decisions that cannot wait for the store.
   * Another tab may have changed the state since, so a transaction decides again.
   * @type {Device | undefined}
   */
  #lastDevice;
  /**
   * @type {{ device?: Device, year?: number, names: Set<string> }} cache: metrics without budget, by device and year
   */
  #withoutBudget = { names: new Set() };
  /** @type {import("../documents.js").QueuedUpload | undefined} the upload that leaves if the page ends now */
  #endUpload;
  /** @type {string | undefined} */ #disabledReason;
  #failureCount = 0; // failures of this page. They are not stored, because the store itself may have failed
  #warnedAt = -Infinity; // time of the last log line
  /** @type {RecordedEvent[]} events that are not stored yet, the oldest first */ #eventsInMemory = [];
  #page = ""; // random name of this page; empty until an identity is open
  #seq = 0; // number of the next event of this page. The store recognizes by it an event that was stored before
  #droppedCount = 0; // values that were lost because memory was full, and that no transaction has counted yet
  /** @type {DeferredEvents} */ #deferred;
  /** @type {Promise<unknown> | undefined} the storing of events that is under way */ #storing;
  /** @type {Promise<Identity> | undefined} the opening of the identity that is under way */ #opening;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #retryTimer;
  /** @type {import("./tabs.js").Tabs} */ #tabs;
  /** @type {Uploader | undefined} */ #uploader;
  /** @type {Sender | undefined} */ #sender;

  /**
   * Create a client. Pages call `Client.open`, which reads the registry and opens the identity as well.
   * @param {Registry} registry
   * @param {OpenOptions} options
   * @param {import("../index.js").Store} store
   * @param {import("../index.js").Transport} [transport]
   */
  constructor(registry, options, store, transport) {
    const { budgetCap, clock, coins = drawSystemCoins, normalizers, optedOut = [], queueLimits } = options;
    const { maxDelay = 60, background = true } = options;
    this.#registry = registry;
    this.#store = store;
    this.#consent = options.consent;
    this.#settings = {
      coins,
      clock: boundClock(clock),
      limits: { reports: 200, bytes: 200_000, log: 200, ...queueLimits },
      cap: { total: Infinity, per: "year", ...budgetCap },
      normalizers,
    };
    checkSettings(this.#settings);
    checkOption(typeof optedOut !== "string", "optedOut must be a list of names");
    checkOption(maxDelay >= 0 && maxDelay < Infinity, "maxDelay must be seconds, at least 0");
    const metrics = [...registry.metrics.values()];
    this.#deferred = new DeferredEvents(store, metrics.some(({ durable }) => durable));
    const refused = [...optedOut];
    for (const name of refused) this.#refuse(name);
    const unknown = metrics.length ? refused.filter((name) => !registry.metrics.has(name)) : [];
    // With a misspelt name, the metric that the person refuses would stay active, and nobody would notice.
    if (unknown.length && options.consent) warn(`optedOut has names that no metric has: ${quoteNames(unknown)}`);
    // A notice of another tab has the name of a metric that the person refuses there, or no name after a withdrawal.
    this.#tabs = connectTabs(store.channel, (name) => (name ? this.#refuse(name) : this.#forgetIdentity()));
    if (transport) {
      this.#uploader = new Uploader({
        ...this.#settings,
        transport,
        update: (work, strict) => withDeadline(this.#update(CHANGING_DOCUMENTS, work, strict)),
        prepare: (documents) => this.#dropRefused(documents),
        isRefused: (metric) => this.#refused.has(metric),
      });
      if (background) this.#sender = new Sender((isBacklog) => this.#step({ isBacklog }), { ...this.#settings, maxDelay });
    }
    globalThis.addEventListener?.("pagehide", this.#endPage);
    globalThis.document?.addEventListener("visibilitychange", this.#deferEvents);
  }

  /**
   * Open the device of a store, within two seconds.
   * @param {OpenOptions} options index.d.ts documents them
   * @returns {Promise<Client>} a client that may be disabled
   * @throws {ParamsError} an option is wrong
   * @throws {MetricError} the registry is wrong
   */
  static async open(options) {
    const { name = "telemetry", consent, store = indexedDbStore(name), collector, uploadKey } = options;
    const { segment = {} } = options;
    checkOption(typeof consent === "boolean", "consent must be true or false");
    const isRecord = Object.values(segment).every((value) => typeof value === "string");
    checkOption(isRecord, "segment must be texts by name");
    // The erasure comes before the other options are checked. Otherwise a program with a wrong registry would keep the
    // data of a person who has withdrawn consent. A slow erasure continues in the background.
    if (!consent) await withDeadline(eraseStore(store, options.clock)).catch(() => {});
    const transport = options.transport ?? (collector ? httpTransport(collector, uploadKey) : undefined);
    checkOption(!transport || transport.send, "transport must be { send }");
    const isSecure = Boolean(globalThis.crypto?.subtle);
    const registry = isSecure ? await readRegistry(options.registry, segment) : { total: 0, metrics: new Map() };
    const client = new Client(registry, options, store, transport);
    if (!isSecure) client.#disable("a page must be of https or of localhost");
    else if (consent) await client.#runSafely(() => client.#openOnce());
    return client;
  }

  /** Reason why the client is disabled, undefined if it is not. It becomes undefined when the store responds again. */
  get disabledReason() {
    return this.#disabledReason;
  }

  /** Whether there is consent, and nothing disables the client. */
  get isEnabled() {
    return this.#consent && this.#disabledReason === undefined;
  }

  /** Metrics by name, with their texts for people. */
  get metrics() {
    return this.#registry.metrics;
  }

  /**
   * Record a value of a metric. The call waits for nothing, and the event is stored soon after.
   * @param {string} name
   * @param {unknown} value
   * @returns {Outcome}
   * @throws {MetricError} the metric is unknown
   * @throws {ReportError} the value is of the wrong kind
   */
  record(name, value) {
    // A page without https has no WebCrypto, so `open` could not read the registry, and no name can be checked.
    if (this.#disabledReason && !this.#registry.metrics.size) return skipOutcome("disabled");
    const metric = findMetric(this.#registry, name);
    const timestamp = this.#settings.clock();
    const reason = this.#findSkipReason(metric, dayOf(timestamp));
    if (reason) return skipOutcome(reason);
    const { input, fits } = readValue(metric.params, value); // raises for a value of the wrong kind
    const event = {
      page: this.#page,
      seq: this.#seq,
      name,
      input,
      params: metric.fingerprint,
      timestamp,
      tag: drawTag(this.#settings.coins),
      fits,
    };
    const outcome = this.#findOutcomeWithoutStore(metric, event);
    if (outcome) return outcome;
    if (this.#eventsInMemory.length >= MAX_EVENTS_IN_MEMORY) {
      this.#droppedCount += 1;
      return MEMORY_FULL;
    }
    this.#seq += 1;
    this.#eventsInMemory.push(event);
    this.#storeEvents();
    // A hidden page may end without a further event of the browser, and a durable value must be in synchronous storage
    // when this call returns. In both cases the events are deferred at once.
    if (metric.durable || globalThis.document?.hidden) this.#deferEvents();
    return metric.durable && !this.#deferred.has(event) ? NOT_STORED : RECORDED;
  }

  /**
   * Store the events in memory, send queued reports for some seconds, and return why the flush ended.
   * @param {{ timeout?: number }} options in seconds
   * @returns {Promise<FlushResult>}
   * @throws {ParamsError} the timeout is negative or no number
   */
  async flush({ timeout = 10 } = {}) {
    checkOption(timeout >= 0, "timeout must be seconds, at least 0");
    const options = { deadline: readMonotonicClock() + timeout, tried: new Set(), isOver: false };
    const failed = createFlushResult("failed"); // #flush updates its numbers
    const flushing = this.#runSafely(() => this.#flush(options, failed), failed, timeout + GRACE_SECONDS);
    return flushing.finally(() => (options.isOver = true));
  }

  /** Return the number of finished reports without a response of the collector, 0 if the store cannot be read. */
  queuedCount() {
    return this.#query(({ spool }) => countQueued(spool), 0);
  }

  /**
   * Return the number of reports that wait for the end of their interval, or for the event or step that queues them. The
   * result is 0 if the store cannot be read.
   */
  pendingCount() {
    return this.#query(({ device }) => listPending(device).length, 0);
  }

  /**
   * Return the privacy loss so far in nats, in all and by metric, and the nats reserved by year. If the store cannot be
   * read, the loss is infinite, because it is unknown: an earlier page or another tab may have sent reports.
   */
  privacySpent() {
    const nothing = privacySpent(createDevice());
    return this.#query(({ device }) => privacySpent(device), nothing, { ...nothing, nats: Infinity });
  }

  /** Return the uploads that have left the device, or may have left it, with their bytes, the oldest first. */
  sentUploads() {
    return this.#query(({ spool, log }) => sentUploads(spool, log, this.#endUpload), []);
  }

  /** Return the event counters: numbers of recorded, accepted, dropped and refused reports, and others. */
  async eventCounts() {
    const counters = await this.#query(({ device }) => ({ ...device.counters }), {});
    return this.#failureCount ? { ...counters, failures: this.#failureCount } : counters;
  }

  /**
   * Refuse a metric from now on, in all tabs, and drop its reports that have not left. The client does not store the
   * choice: the host program must store it, and pass it as `optedOut` when it opens the next client.
   * @param {string} name
   * @throws {MetricError} the metric is unknown
   */
  async optOut(name) {
    this.#refuse(findMetric(this.#registry, name).name);
    this.#tabs.notify(name);
    await this.#runSafely(() => this.#update(CHANGING_DOCUMENTS, (documents) => this.#dropRefused(documents)));
  }

  /** Withdraw consent: erase everything but the reserved nats, and return the facts that were verified. */
  async withdraw() {
    this.#forgetIdentity();
    return eraseStore(this.#store, this.#settings.clock);
  }

  /** Store the events in memory and stop the background sender. Queued reports stay in the store. */
  async close() {
    this.#stopSending();
    await this.#runSafely(() => this.#storeEvents().then(() => this.#store.close()));
    this.#deferEvents();
    this.#stopListening();
    this.#tabs.close();
  }

  /**
   * Return the reason why a metric is skipped, as far as it is known without the state of the device: no consent, a
   * disabled client, the choice of the person, or the last day of the metric. No reason depends on the value.
   * @param {Metric} metric
   * @param {string} today
   * @returns {SkipReason | undefined}
   */
  #findSkipReason(metric, today) {
    if (!this.#consent) return "no consent";
    // A store that failed before may respond by now. This value is skipped, and the attempt to open the identity
    // continues.
    const mayOpen = !this.#identity && !this.#opening;
    if (mayOpen) this.#runSafely(() => this.#openOnce());
    if (this.#disabledReason) return "disabled";
    if (this.#refused.has(metric.name)) return "opted out";
    return today > metric.expires ? "expired" : undefined;
  }

  /**
   * Return the outcome of an event that need not be stored: its metric is skipped, or another event of its interval has
   * a smaller tag. Return undefined if the event must be stored, so that a transaction decides. On a page that records
   * often, most events end here without a transaction.
   * @param {Metric} metric
   * @param {RecordedEvent} event
   * @returns {Outcome | undefined}
   */
  #findOutcomeWithoutStore(metric, { timestamp, tag }) {
    const [device, preparer] = [this.#lastDevice, this.#identity?.preparer];
    if (!device || !preparer) return undefined;
    if (findStopEnd(device, metric.name, timestamp)) return skipOutcome("stopped");
    if (!this.#hasBudget(device, metric, timestamp)) return skipOutcome("budget");
    const reason = preparer.findSkipReason(device, metric, dayOf(timestamp));
    if (reason) return skipOutcome(reason);
    // In two cases a transaction must change the store, whether this event is chosen or not: the cost of the metric is
    // not reserved yet, or an interval has ended and its pending report must be decided.
    const mustReserve = !isReserved(device, metric, yearOf(timestamp));
    if (mustReserve || hasEndedInterval(device, timestamp)) return undefined;
    const smallest = findSmallestTag(device, metric, timestamp);
    if (smallest === undefined) return skipOutcome("interval");
    return tag >= smallest ? RECORDED : undefined;
  }

  /** Store the events in memory. If a run of #storeAll is under way, it stores them. The promise never rejects. */
  #storeEvents() {
    this.#storing ??= this.#storeAll();
    return this.#storing;
  }

  /**
   * Store the events in memory, batch after batch, until none is left. After a failure, the timer starts another run.
   */
  async #storeAll() {
    try {
      await undefined; // until the caller's code has run, so that all events that it records become one batch
      /**
       * @type {Map<RecordedEvent, ReadyEvent>} prepared events. An event that a transaction has not stored is in the
       *   next batch, and is not prepared again
       */
      const ready = new Map();
      while (this.#consent && this.#eventsInMemory.length) {
        clearTimeout(this.#retryTimer);
        this.#retryTimer = setTimeout(() => this.#storeEvents(), 1000 * RETRY_SECONDS); // in case this run fails
        /** @type {any} */ (this.#retryTimer).unref?.(); // in Node the timer must not keep a program alive
        const { preparer } = this.#identity ?? (await this.#openOnce());
        const fresh = this.#eventsInMemory.filter((event) => !ready.has(event));
        const prepared = await Promise.all(fresh.map((event) => this.#prepare(preparer, event)));
        for (const item of prepared) ready.set(item.event, item);
        const batch = this.#eventsInMemory.flatMap((event) => ready.get(event) ?? []);
        const n = await withDeadline(this.#storeBatch(batch));
        // `n` events are stored. If there is an event after them, it begins a scope and needs its permanent response,
        // which cannot be computed inside a transaction. The next batch begins with this event.
        const { admissible } = batch[n] ?? {};
        if (admissible) await preparer.addPermanent(admissible.value);
        if (n) this.#sender?.nudge();
      }
      clearTimeout(this.#retryTimer);
    } catch (error) {
      this.#handleFailure(error);
    } finally {
      this.#storing = undefined;
    }
  }

  /**
   * Store the first events of a batch in one transaction, and return their number.
   * @param {ReadyEvent[]} batch
   * @returns {Promise<number>}
   */
  async #storeBatch(batch) {
    const dropped = this.#droppedCount;
    const n = await this.#update(["device", "spool"], (documents) => {
      if (dropped) addCount(documents.device, "dropped_full", dropped);
      return storeEvents(documents, batch, this.#settings, (device, metric, now) =>
        this.#mayReport(device, metric, now),
      );
    });
    this.#droppedCount -= dropped; // not 0: further values may have been dropped during the transaction
    this.#dropEvents(batch.slice(0, n).map(({ event }) => event));
    return n;
  }

  /**
   * Prepare the value of an event. An event is not admissible if the decisions of the secret skip its metric, or if an
   * earlier page recorded it under another parameter set, by which its input cannot be encoded.
   * @param {ValuePreparer} preparer
   * @param {RecordedEvent} event
   * @returns {Promise<ReadyEvent>}
   */
  async #prepare(preparer, event) {
    const device = /** @type {Device} */ (this.#lastDevice); // defined together with the identity
    const metric = this.#registry.metrics.get(event.name);
    const day = dayOf(event.timestamp);
    if (metric?.fingerprint !== event.params) return { event };
    await preparer.decide(device, metric, day);
    if (preparer.findSkipReason(device, metric, day)) return { event };
    return { event, admissible: { metric, value: await preparer.prepare(device, metric, event.input, day) } };
  }

  /** Write the events in memory into synchronous storage, because the page may end, or because a metric is durable. */
  #deferEvents = () => {
    const secret = this.#identity?.secret;
    if (secret && this.#deferred.defer(this.#eventsInMemory)) {
      this.#runSafely(() => this.#deferred.prepare(secret)); // a key stream for the next text, if the page goes on
    }
  };

  /**
   * Store the events in memory, and make steps of sending until nothing is queued, the deadline has come, or nothing
   * may leave before the deadline.
   * @param {import("./uploader.js").FlushOptions} options
   * @param {{ sent: number, queued: number }} failed the result if the store fails later. Each step updates its numbers
   */
  async #flush(options, failed) {
    /** @type {Step[]} */
    const steps = [];
    const { deadline, tried } = options;
    if (this.#consent && !this.#identity) await this.#openOnce();
    await this.#storeEvents();
    while (this.#consent && this.#uploader && !options.isOver) {
      const step = await this.#step(options);
      steps.push(step);
      if (step.id) tried.add(step.id);
      if (step.reason === "sent") failed.sent += 1;
      const queued = step.queued || (await this.#countUnsent());
      failed.queued = queued;
      const pause = Math.max(step.nextAt - this.#settings.clock(), 0);
      if (!queued || pause >= deadline - readMonotonicClock()) return summarizeSteps(steps, queued);
      const sleep = 1000 * Math.min(pause, LONGEST_SLEEP); // a timer of more than 24 days would end at once
      await new Promise((resolve) => setTimeout(resolve, sleep));
    }
    const queued = await this.#countUnsent();
    const reason = this.#consent ? "no collector" : "no consent";
    return createFlushResult(queued ? reason : "nothing queued", { queued });
  }

  /**
   * Return the number of finished reports without a response, or if there are none, of events that could not be stored.
   * Otherwise a flush on a full disk would end with "nothing queued". Rejects if the store cannot be read: a damaged
   * store is not an empty one.
   */
  async #countUnsent() {
    const queued = await withDeadline(this.#read(({ spool }) => countQueued(spool), 0));
    return queued || this.#eventsInMemory.length;
  }

  /**
   * Make one step of sending, unless another tab is making one.
   * @param {import("./uploader.js").StepOptions} [options]
   * @returns {Promise<Step>}
   */
  async #step(options) {
    const uploader = /** @type {Uploader} */ (this.#uploader);
    // Another tab ends its step soon, so the next attempt is after a second. A store that fails may fail for long, so
    // the next attempt is after an hour.
    const busy = { nextAt: this.#settings.clock() + 1, reason: /** @type {const} */ ("busy") };
    const step = () => this.#tabs.exclusively(() => uploader.step(options), busy);
    const failed = { nextAt: this.#settings.clock() + 3600, reason: /** @type {const} */ ("failed") };
    return this.#runSafely(step, failed, Infinity);
  }

  /**
   * Refuse a metric in this tab: drop its events in memory. The next transaction drops its reports (#dropRefused).
   * @param {string} name
   */
  #refuse(name) {
    this.#refused.add(name);
    this.#dropEvents([]);
  }

  /**
   * Remove events that are stored, and events of metrics that the person has refused, from memory and from the
   * deferred events.
   * @param {RecordedEvent[]} stored
   */
  #dropEvents(stored) {
    const isDone = new Set(stored);
    this.#eventsInMemory = this.#eventsInMemory.filter((event) => !isDone.has(event) && !this.#refused.has(event.name));
    this.#deferred.removeStored(this.#eventsInMemory);
  }

  /**
   * Drop the reports of the metrics that the person has refused.
   * @param {Required<Documents>} documents
   */
  #dropRefused({ device, spool, log }) {
    const { clock, limits } = this.#settings;
    const context = { now: clock(), limits, endUpload: this.#endUpload };
    dropMetrics(device, spool, log, this.#refused, context);
  }

  /** Defer the events in memory and send one upload, because the page ends. The request continues after the page. */
  #endPage = () => {
    this.#deferEvents();
    const [upload, seen] = [this.#endUpload, this.#lastDevice];
    this.#endUpload = undefined;
    if (!upload || !seen || this.#refused.has(upload.metric)) return;
    this.#runSafely(async () => this.#uploader?.sendAtPageEnd(seen, upload));
  };

  /** Open the identity, or wait for the attempt that is under way. The attempt fails after STORE_PATIENCE seconds. */
  #openOnce() {
    this.#opening ??= withDeadline(this.#openIdentity()).finally(() => (this.#opening = undefined));
    return this.#opening;
  }

  /**
   * Read the identity of the store, or create one, and make the client ready:
   *
   * 1. Draw a secret, for the case that the store has none. It is drawn in advance, because a transaction cannot wait
   *    for WebCrypto.
   * 2. In one transaction: create the device if there is none, check that device and secret belong together, drop the
   *    reports of refused metrics, and store the parameter sets of the registry.
   * 3. Load the tables of the normalizers, and compute the decisions of the secret for each metric.
   * 4. Take over the events that earlier pages have deferred.
   * 5. Enable the client, store the events in memory, and start the background sender if anything is queued.
   *
   * During each `await` the page may end, or consent may be withdrawn. So consent is checked inside the transaction and
   * again before step 5.
   */
  async #openIdentity() {
    const bytes = crypto.getRandomValues(new Uint8Array(SECRET_BYTES));
    const fresh = {
      secretId: drawId(),
      secret: this.#store.holdsKeys ? await importSecret(bytes) : toBase64url(bytes),
    };
    bytes.fill(0); // the bytes are in `fresh` only: as a key that cannot be read, or for a store in a file as a text
    const now = this.#settings.clock();
    const metrics = [...this.#registry.metrics.values()];
    const { identity, device, spool } = await this.#store.update(
      ALL,
      (documents) => {
        if (!this.#consent) throw new IdentityChanged(); // consent was withdrawn meanwhile
        // The store is new, or has only the reserved nats that an earlier identity has left.
        if (!documents.identity && !documents.device?.secretId) {
          const lost = documents.device ? undefined : findLostYear(documents, now);
          const device = createDevice(fresh.secretId, documents.device ?? (lost ? { lost } : undefined));
          Object.assign(documents, { identity: fresh, device });
        }
        // A device without its secret, or with another one, is damaged. A new secret would draw second permanent
        // responses.
        if (!documents.identity || !isConsistent(documents)) throw new DamagedStoreError();
        const complete = addDefaults(documents);
        this.#dropRefused(complete);
        updateLostYear(complete.device, yearOf(now)); // if the reserved nats of a year were lost (reservation.js)
        storeParams(complete.device, metrics);
        return complete;
      },
      { strict: true },
    );
    const secret = await importStoredSecret(identity.secret);
    const normalizers = new Set(metrics.flatMap(({ params }) => params.normalize.split(",")));
    await loadNormalizers(normalizers, this.#settings.normalizers);
    const preparer = new ValuePreparer(secret);
    await Promise.all(metrics.map((metric) => preparer.decide(device, metric, dayOf(now))));
    if (this.#identity) return this.#identity; // this attempt came after its deadline, and a later one was quicker
    this.#page ||= drawId();
    this.#eventsInMemory.unshift(...(await this.#deferred.read(secret))); // of earlier pages, hence the oldest
    this.#dropEvents([]);
    await this.#deferred.prepare(secret);
    if (!this.#consent) throw new IdentityChanged();
    this.#lastDevice = device;
    this.#identity = { secret, secretId: identity.secretId, preparer };
    this.#disabledReason = undefined;
    const queued = countQueued(spool);
    // Whether anything waits: a finished report, an event of an earlier page, or a pending report.
    const hasBacklog = queued || this.#eventsInMemory.length || findNextEnd(device) < Infinity;
    this.#storeEvents().then(() => hasBacklog && this.#sender?.catchUp(queued));
    const without = metrics.filter((metric) => !this.#hasBudget(device, metric, now));
    if (without.length) this.#warn(`no room in the budget for ${without.map(({ name }) => name)}`);
    return this.#identity;
  }

  /**
   * Return whether a metric has budget, is not stopped, and is not refused. Bad case: the person refuses the metric while
   * a batch with its event waits for the store.
   * @param {Device} device
   * @param {Metric} metric
   * @param {number} now
   */
  #mayReport(device, metric, now) {
    const { name } = metric;
    return this.#hasBudget(device, metric, now) && !findStopEnd(device, name, now) && !this.#refused.has(name);
  }

  /**
   * Return whether a metric has budget in the year of a time. The result is cached until the state of the device or the
   * year changes.
   * @param {Device} device
   * @param {Metric} metric
   * @param {number} now
   */
  #hasBudget(device, metric, now) {
    const year = yearOf(now);
    if (this.#withoutBudget.device !== device || this.#withoutBudget.year !== year) {
      const names = findUnaffordable(device, this.#registry, this.#findNatLimits(), year);
      this.#withoutBudget = { device, year, names };
    }
    return !this.#withoutBudget.names.has(metric.name);
  }

  /** Return the limits of reserved nats: the total of the registry for a year, and the cap of the host program. */
  #findNatLimits() {
    const { total, per } = this.#settings.cap;
    const ofRegistry = this.#registry.total;
    if (per === "life") return { year: ofRegistry, life: total };
    return { year: Math.min(ofRegistry, total), life: Infinity };
  }

  /**
   * Run work on documents of this identity in one transaction, and return its result. If the work raises, no document
   * is changed. Each transaction also prepares the upload that leaves if the page ends.
   * @template T
   * @param {(keyof Documents)[]} names device and spool must be among them
   * @param {(documents: Required<Documents>) => T} work
   * @param {boolean} [strict] whether to wait for the disk
   * @returns {Promise<T>}
   */
  async #update(names, work, strict = false) {
    if (this.#consent && !this.#identity) await this.#openOnce();
    const [result, device, upload] = await this.#store.update(
      names,
      (documents) => {
        const isSame = this.#identity && documents.device?.secretId === this.#identity.secretId;
        if (!isSame) throw new IdentityChanged();
        if (!isConsistent(documents)) throw new DamagedStoreError();
        const complete = /** @type {Required<Documents>} */ (documents); // #openIdentity wrote all of them
        const result = work(complete);
        // A program on Node has no page that ends, and without a background sender only flush() sends.
        const isPage = this.#sender && this.#store.channel !== undefined;
        const upload = isPage && this.#uploader?.prepareEndUpload(complete, this.#endUpload);
        return /** @type {const} */ ([result, complete.device, upload || undefined]);
      },
      { strict },
    );
    // If consent was withdrawn during the transaction, the identity is forgotten, and its state must not come back.
    if (this.#identity) [this.#lastDevice, this.#endUpload] = [device, upload];
    return result;
  }

  /**
   * Return the result of #read, or `ifUnreadable` if the store cannot be read.
   * @template T
   * @param {(documents: Required<Documents>) => T} compute
   * @param {T} ifEmpty
   * @param {T} [ifUnreadable]
   * @returns {Promise<T>}
   */
  #query(compute, ifEmpty, ifUnreadable = ifEmpty) {
    return this.#runSafely(() => this.#read(compute, ifEmpty), ifUnreadable);
  }

  /**
   * Store the events in memory, read the documents, and return the result of a function of them. Return `ifEmpty` if the
   * store is empty. Reject if it cannot be read.
   * @template T
   * @param {(documents: Required<Documents>) => T} compute
   * @param {T} ifEmpty
   * @returns {Promise<T>}
   */
  async #read(compute, ifEmpty) {
    await this.#storeEvents();
    const documents = await this.#store.read(ALL);
    return documents.device ? compute(addDefaults(documents)) : ifEmpty;
  }

  /**
   * Run an action, and keep its failures from the page. A mistake of the host program (RapporError) raises. Every other
   * failure is counted and logged, and the result is `otherwise`.
   * @template T
   * @param {() => Promise<T>} action
   * @param {T} [otherwise]
   * @param {number} [seconds] deadline of the action, after which it has failed
   * @returns {Promise<T>}
   */
  async #runSafely(action, otherwise, seconds = STORE_PATIENCE) {
    try {
      return await withDeadline(action(), seconds);
    } catch (error) {
      if (error instanceof RapporError) throw error;
      this.#handleFailure(error);
      return /** @type {T} */ (otherwise);
    }
  }

  /**
   * Count and log a failure. Without an identity the client becomes disabled.
   * @param {unknown} error
   */
  #handleFailure(error) {
    // Consent was withdrawn in another tab, or the person has cleared the data of the site. This is no failure.
    if (error instanceof IdentityChanged) return this.#forgetIdentity();
    this.#failureCount += 1;
    const isDamaged = error instanceof DamagedStoreError;
    // The client becomes disabled, and records nothing into a damaged store.
    if (isDamaged) this.#identity = this.#lastDevice = this.#endUpload = undefined;
    const name = error instanceof Error ? error.name : "error"; // without the message, which may contain a value
    if (this.#identity) this.#warn(`telemetry failed: ${name}`);
    else this.#disable(isDamaged ? "the device is damaged" : `it cannot be opened: ${name}`);
  }

  /**
   * Disable the client. The first reason stays until the identity is opened.
   * @param {string} reason
   */
  #disable(reason) {
    this.#disabledReason ??= reason;
    this.#warn(`telemetry is disabled: ${reason}`);
  }

  /**
   * Log a line, unless another line was logged less than WARN_SECONDS ago.
   * @param {string} text
   */
  #warn(text) {
    const now = this.#settings.clock();
    if (Math.abs(now - this.#warnedAt) < WARN_SECONDS) return;
    this.#warnedAt = now;
    warn(text);
  }

  /** Forget the identity and all events, and send nothing more: consent is withdrawn. */
  #forgetIdentity() {
    this.#consent = false;
    this.#identity = this.#lastDevice = this.#endUpload = this.#disabledReason = undefined;
    this.#eventsInMemory = [];
    this.#stopSending();
    this.#stopListening();
  }

  /** Stop the background sender, and abort the request under way. */
  #stopSending() {
    this.#sender?.stop();
    this.#uploader?.close();
    this.#sender = undefined;
  }

  /** Remove the listeners and the timer, so that this client does nothing more by itself. */
  #stopListening() {
    clearTimeout(this.#retryTimer);
    globalThis.removeEventListener?.("pagehide", this.#endPage);
    globalThis.document?.removeEventListener("visibilitychange", this.#deferEvents);
  }
}

/**
 * Log a line on the console.
 * @param {string} text
 */
function warn(text) {
  console.warn(`rappor: ${text}`);
}

/**
 * Return the first five names for a log line, each quoted and shortened to 64 characters.
 * @param {string[]} names
 */
function quoteNames(names) {
  return names.slice(0, 5).map((name) => JSON.stringify(String(name).slice(0, 64)));
}

/**
 * Add an empty spool and an empty log if the store has none.
 * @param {Documents} documents
 * @returns {Required<Documents>}
 */
function addDefaults(documents) {
  documents.spool = { reports: [], uploads: [], last: {}, ...documents.spool };
  documents.log ??= [];
  return /** @type {Required<Documents>} */ (documents);
}

/**
 * Return the key of a stored secret: the CryptoKey of a store in a page, or the bytes in base64url of a store in a
 * file.
 * @param {object | string} secret
 * @returns {Promise<CryptoKey>}
 */
async function importStoredSecret(secret) {
  if (typeof secret !== "string") return /** @type {CryptoKey} */ (secret);
  const bytes = fromBase64url(secret);
  if (bytes.length !== SECRET_BYTES) throw new DamagedStoreError();
  return importSecret(bytes);
}

/**
 * Refuse limits and caps outside their ranges.
 * @param {{ limits: import("../index.js").QueueLimits, cap: { total: number, per: string } }} settings
 */
function checkSettings({ limits, cap }) {
  const isLimit = (/** @type {number} */ limit) => Number.isInteger(limit) && limit > 0;
  checkOption(Object.values(limits).every(isLimit), "queueLimits must be integers, at least 1");
  const isCap = cap.total >= 0 && ["year", "life"].includes(cap.per);
  checkOption(isCap, "budgetCap must be at least 0, per year or life");
}

/**
 * Raise ParamsError with a sentence, unless a condition holds.
 * @param {unknown} condition
 * @param {string} sentence
 */
function checkOption(condition, sentence) {
  if (!condition) throw new ParamsError(sentence);
}

/**
 * Return the result of a flush: nothing sent and nothing queued, unless `more` has other properties.
 * @param {FlushReason} reason
 * @param {Partial<FlushResult>} [more]
 * @returns {FlushResult}
 */
function createFlushResult(reason, more) {
  return { done: DONE_REASONS.includes(reason), reason, sent: 0, queued: 0, ...more };
}

/**
 * Return the result of a flush from its steps. The reason of the flush:
 *
 *     queued   case                                              reason
 *     any      the store has failed in the last step             "failed". The step could not queue the reports of ended
 *                                                                intervals, so 0 does not mean that nothing is left
 *     0        a report was refused                              "refused"
 *     0        a report was sent                                 "sent"
 *     0        otherwise                                         "nothing queued"
 *     more     the last step has sent a report, or got a         "timeout": the deadline came before the next step
 *              refusal
 *     more     a step has failed, or had a reason to wait        the reason of the last such step
 *     more     otherwise                                         "timeout"
 *
 * In place of "timeout" the reason is "failed" if the last step plans no further step. Then no report waits, and what
 * counts as queued are events that could not be stored.
 * @param {Step[]} steps
 * @param {number} queued number of reports and of unstored events that are left
 */
function summarizeSteps(steps, queued) {
  const sent = steps.filter(({ reason }) => reason === "sent").length;
  const last = /** @type {Step} */ (steps.at(-1));
  const latestFirst = steps.reverse();
  if (!queued && last.reason !== "failed") {
    const refusal = latestFirst.find(({ reason }) => reason === "refused");
    const { reason = sent ? "sent" : "nothing queued", detail } = refusal ?? {};
    return createFlushResult(reason, { sent, detail });
  }
  const isDone = (/** @type {Step} */ { reason }) => reason === undefined || DONE_REASONS.includes(reason);
  const isHeldUp = !last.reason || !isDone(last); // whether the last step has neither sent a report nor got a refusal
  const obstacle = isHeldUp ? latestFirst.find((step) => !isDone(step)) : undefined;
  const isPlanned = last.nextAt < Infinity; // whether a further step is planned
  const { reason = isPlanned ? "timeout" : "failed", detail } = obstacle ?? {};
  return createFlushResult(reason, { sent, queued, detail, retryAt: isHeldUp && isPlanned ? last.nextAt : undefined });
}
