// The client: the object by which a page records values, shows a person the sent uploads, and withdraws consent.
//
// How a value goes through the client:
//
//     record()        checks the value without the secret, and appends an event to memory. It never waits
//     #storeEvents    prepares the events (everything that needs the secret) and stores them, in transactions that
//                     follow each other; writer.js has the rules
//     Sender          takes a step of the uploader when a report may leave
//     flush()         stores the events and takes such steps at once
//
// Nothing is sent before it is stored. A page that ends defers the events that are not stored to the next page
// (deferred_events.js), and sends at most one finished report.
//
// The identity is the secret with its random name. A client opens or creates the identity once. If a later transaction
// finds another identity in the store, or none, consent was withdrawn elsewhere, and the client stops.
//
// Failures. Only mistakes of the host program raise: wrong options, a wrong registry, an unknown metric, a value of the
// wrong kind. #runSafely is the boundary for all other failures, of storage, network or browser: they are counted,
// logged at most once a minute, and never reach the page. While no identity is open the client is disabled, and the
// next record() or flush() tries to open it again.

import { hasEndedInterval, drawTag, findNextEnd, findSmallestTag } from "./admission.js";
import { LONGEST_SLEEP, Sender, readMonotonicClock } from "./background.js";
import { fromBase64url, toBase64url } from "./bytes.js";
import { PATIENCE, withDeadline } from "./deadline.js";
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
/** Largest number of recorded events in memory while the store does not respond. Further values are lost. */
const MAX_EVENTS_IN_MEMORY = 1000;
/** Seconds until a store that failed is tried again. A smaller number finds it sooner, and costs more work. */
const RETRY_SECONDS = 10;
/** Smallest number of seconds between two log lines, so that a lasting failure does not fill the console. */
const WARN_SECONDS = 60;
/** Seconds that a flush may take beyond its timeout, for the last transaction of the store. */
const GRACE_SECONDS = 0.5;
/** @type {FlushReason[]} reasons after which nothing is queued */
const DONE_REASONS = ["nothing queued", "sent", "refused"];

/** The identity in the store is gone, or is another one than this client opened. */
class IdentityChanged extends Error {}

/** The telemetry of one device in one store. All tabs with the store are one device. index.d.ts has the public names. */
export class Client {
  /** @type {Registry} */ #registry;
  /** @type {import("../index.js").Store} */ #store;
  /** @type {ClientSettings} */ #settings;
  /** @type {boolean} false after a withdrawal, also one in another tab */ #consent;
  /** @type {Set<string>} names of the metrics that the person refuses */ #refused = new Set();
  /** @type {Identity | undefined} */ #identity;
  /** @type {Device | undefined} the device as the last transaction left it; another tab may have changed it since */
  #lastDevice;
  /** @type {{ device?: Device, year?: number, names: Set<string> }} cache: metrics without budget, of a device and year */
  #withoutBudget = { names: new Set() };
  /** @type {import("../documents.js").QueuedUpload | undefined} the upload that leaves if the page ends now */
  #endUpload;
  /** @type {string | undefined} */ #disabledReason;
  #failureCount = 0; // failures that no transaction could count
  #warnedAt = -Infinity; // time of the last log line
  /** @type {RecordedEvent[]} events that are not stored yet, the oldest first */ #eventsInMemory = [];
  #page = ""; // random name of this page; empty until an identity is open
  #seq = 0; // number of the next event of this page, so that no event is stored twice
  #droppedCount = 0; // values that were lost because memory was full, and are not counted in the store yet
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
    const metrics = [...registry.metrics.values()];
    this.#deferred = new DeferredEvents(store, metrics.some(({ durable }) => durable));
    const refused = [...optedOut];
    for (const name of refused) this.#refuse(name);
    const unknown = metrics.length ? refused.filter((name) => !registry.metrics.has(name)) : [];
    // The choice of a person has no effect if a name is misspelt, so the program is told by a log line.
    if (unknown.length && options.consent) warn(`optedOut has names that no metric has: ${quoteNames(unknown)}`);
    // A message of another tab names the metric that the person refuses there, or no metric after a withdrawal.
    this.#tabs = connectTabs(store.channel, (name) => (name ? this.#refuse(name) : this.#forgetIdentity()));
    if (transport) {
      this.#uploader = new Uploader({
        ...this.#settings,
        transport,
        update: (work, strict) => withDeadline(this.#update(CHANGING_DOCUMENTS, work, strict)),
        prepare: (documents) => this.#dropRefused(documents),
      });
      const { maxDelay = 60, background = true } = options;
      checkOption(maxDelay >= 0 && maxDelay < Infinity, "maxDelay must be seconds, at least 0");
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
    // The erasure comes before other options are checked: a program with a wrong registry must not keep the data of a
    // person who has withdrawn consent. A slow erasure continues in the background.
    if (!consent) await withDeadline(eraseStore(store, options.clock)).catch(() => {});
    const transport = options.transport ?? (collector ? httpTransport(collector, uploadKey) : undefined);
    const isSecure = Boolean(globalThis.crypto?.subtle);
    const registry = isSecure ? await readRegistry(options.registry, segment) : { total: 0, metrics: new Map() };
    const client = new Client(registry, options, store, transport);
    if (!isSecure) client.#disable("a page must be of https or of localhost");
    else if (consent) await client.#runSafely(() => client.#openOnce());
    return client;
  }

  /** Reason why the client is disabled, undefined if it is not. It ends when the store responds again. */
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
    // A page without https has no WebCrypto. No registry could be read, so no name can be checked.
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
    // A page that is hidden may end without an event of the browser, and a durable value must survive any end.
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
    const flushing = this.#runSafely(() => this.#flush(options), createFlushResult("failed"), timeout + GRACE_SECONDS);
    return flushing.finally(() => (options.isOver = true));
  }

  /** Return the number of finished reports without a response of the collector. */
  queuedCount() {
    return this.#query(({ spool }) => countQueued(spool), 0);
  }

  /** Return the privacy loss so far in nats, in all and by metric, and the nats reserved by year. */
  privacySpent() {
    return this.#query(({ device }) => privacySpent(device), privacySpent(createDevice()));
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
   * Refuse a metric from now on, in all tabs, and drop its queued reports. The page must store the choice.
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
   * Return the reason why a metric is skipped that needs no device: consent, a disabled client, the person's choice,
   * or the last day of collection. No reason depends on the value.
   * @param {Metric} metric
   * @param {string} today
   * @returns {SkipReason | undefined}
   */
  #findSkipReason(metric, today) {
    if (!this.#consent) return "no consent";
    // A store that failed before may respond by now. The attempt goes on while this value is skipped.
    const mayOpen = !this.#identity && !this.#opening;
    if (mayOpen) this.#runSafely(() => this.#openOnce());
    if (this.#disabledReason) return "disabled";
    if (this.#refused.has(metric.name)) return "opted out";
    return today > metric.expires ? "expired" : undefined;
  }

  /**
   * Return the outcome of an event that need not be stored: its metric is skipped, or another event of its interval has
   * a smaller tag. Return undefined if a transaction must decide. Most events of a busy page end here.
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
    // The store must change in any case: the cost of the metric is not reserved, or an ended interval has a report.
    const mustReserve = !isReserved(device, metric, yearOf(timestamp));
    if (mustReserve || hasEndedInterval(device, timestamp)) return undefined;
    const smallest = findSmallestTag(device, metric, timestamp);
    if (smallest === undefined) return skipOutcome("interval");
    return tag >= smallest ? RECORDED : undefined;
  }

  /** Store the events in memory, in one run at a time. The promise never rejects. */
  #storeEvents() {
    this.#storing ??= this.#storeAll();
    return this.#storing;
  }

  /** Store the events in memory, batch after batch, until none is left. A failure ends the run. */
  async #storeAll() {
    try {
      await undefined; // until the caller's task is over, so that all events of one task become one batch
      /** @type {Map<RecordedEvent, ReadyEvent>} prepared events: a batch that is stored in part comes again */
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
        // The transaction stopped at an event that begins a scope. It needs its permanent response, which cannot be
        // computed inside a transaction. The next batch begins with this event.
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
    this.#droppedCount -= dropped; // others may have been dropped during the transaction
    this.#dropEvents(batch.slice(0, n).map(({ event }) => event));
    return n;
  }

  /**
   * Prepare the value of an event. An event is not admissible if the decisions of the secret skip its metric, or if it
   * was recorded by an earlier page under another parameter set.
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

  /** Defer the events in memory to the next page, because this one may end, or because a metric is durable. */
  #deferEvents = () => {
    const secret = this.#identity?.secret;
    if (secret && this.#deferred.defer(this.#eventsInMemory)) {
      this.#runSafely(() => this.#deferred.prepare(secret)); // a new key stream, for a page that goes on
    }
  };

  /**
   * Take steps of sending until nothing is queued, the deadline has come, or nothing may leave before the deadline.
   * @param {import("./uploader.js").FlushOptions} options
   */
  async #flush(options) {
    /** @type {Step[]} */
    const steps = [];
    const { deadline, tried } = options;
    if (this.#consent && !this.#identity) await this.#openOnce();
    await this.#storeEvents();
    while (this.#consent && this.#uploader && !options.isOver) {
      const step = await this.#step(options);
      steps.push(step);
      if (step.id) tried.add(step.id);
      // Events that could not be stored count as queued. Otherwise a full disk would look like success.
      const queued = step.queued || (await this.queuedCount()) || this.#eventsInMemory.length;
      const pause = Math.max(step.nextAt - this.#settings.clock(), 0);
      if (!queued || pause >= deadline - readMonotonicClock()) return summarizeSteps(steps, queued);
      const sleep = 1000 * Math.min(pause, LONGEST_SLEEP); // a timer of more than 24 days would end at once
      await new Promise((resolve) => setTimeout(resolve, sleep));
    }
    const queued = await this.queuedCount();
    const reason = this.#consent ? "no collector" : "no consent";
    return createFlushResult(queued ? reason : "nothing queued", { queued });
  }

  /**
   * Take one step of sending, unless another tab takes one.
   * @param {import("./uploader.js").StepOptions} [options]
   * @returns {Promise<Step>}
   */
  async #step(options) {
    const uploader = /** @type {Uploader} */ (this.#uploader);
    // In seconds: another tab ends its step soon, but a store that fails may fail for long.
    const busy = { nextAt: this.#settings.clock() + 1, reason: /** @type {const} */ ("busy") };
    const step = () => this.#tabs.exclusively(() => uploader.step(options), busy);
    const failed = { nextAt: this.#settings.clock() + 3600, reason: /** @type {const} */ ("failed") };
    return this.#runSafely(step, failed, Infinity);
  }

  /**
   * Refuse a metric in this tab.
   * @param {string} name
   */
  #refuse(name) {
    this.#refused.add(name);
    this.#uploader?.dropClaim();
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

  /** Defer the events in memory and send one upload, because the page ends. The request outlives the page. */
  #endPage = () => {
    this.#deferEvents();
    const [upload, seen] = [this.#endUpload, this.#lastDevice];
    this.#endUpload = undefined;
    if (!upload || !seen || this.#refused.has(upload.metric)) return;
    this.#runSafely(async () => this.#uploader?.sendAtPageEnd(seen, upload));
  };

  /** Open the identity, in one attempt at a time. After PATIENCE seconds the attempt counts as failed. */
  #openOnce() {
    this.#opening ??= withDeadline(this.#openIdentity()).finally(() => (this.#opening = undefined));
    return this.#opening;
  }

  /**
   * Read the identity of the store, or create one, and apply the choices of the person:
   *
   * 1. Draw a secret, for the case that the store has no device. A transaction cannot wait for WebCrypto.
   * 2. In one transaction: create the device if there is none, check that device and secret belong together, drop the
   *    reports of refused metrics, and store the parameter sets of the registry.
   * 3. Load the tables of the normalizers, and compute the decisions of the secret for each metric.
   * 4. Take over the events that earlier pages have deferred.
   * 5. Enable the client, store the events in memory, and start the background sender if anything is queued.
   *
   * The page may end, or consent be withdrawn, during each `await`.
   */
  async #openIdentity() {
    const bytes = crypto.getRandomValues(new Uint8Array(SECRET_BYTES));
    const fresh = {
      secretId: drawId(),
      secret: this.#store.holdsKeys ? await importSecret(bytes) : toBase64url(bytes),
    };
    bytes.fill(0); // a key of WebCrypto is the only copy from here on
    const now = this.#settings.clock();
    const metrics = [...this.#registry.metrics.values()];
    const { identity, device, spool } = await this.#store.update(
      ALL,
      (documents) => {
        if (!this.#consent) throw new IdentityChanged(); // consent was withdrawn meanwhile
        // A new store, or the record that an earlier identity has left.
        if (!documents.identity && !documents.device?.secretId) {
          const lost = documents.device ? undefined : findLostYear(documents, now);
          const device = createDevice(fresh.secretId, documents.device ?? (lost ? { lost } : undefined));
          Object.assign(documents, { identity: fresh, device });
        }
        // A device without its secret, or with another one: a second secret would draw second permanent responses.
        if (!documents.identity || !isConsistent(documents)) throw new DamagedStoreError();
        const complete = addDefaults(documents);
        this.#dropRefused(complete);
        updateLostYear(complete.device, yearOf(now));
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
    if (this.#identity) return this.#identity; // this attempt was given up, and a later one was quicker
    this.#page ||= drawId();
    this.#eventsInMemory.unshift(...(await this.#deferred.read(secret))); // of earlier pages, hence the oldest
    this.#dropEvents([]);
    await this.#deferred.prepare(secret);
    if (!this.#consent) throw new IdentityChanged();
    this.#lastDevice = device;
    this.#identity = { secret, secretId: identity.secretId, preparer };
    this.#disabledReason = undefined;
    const queued = countQueued(spool);
    const hasBacklog = queued || this.#eventsInMemory.length || findNextEnd(device) < Infinity;
    this.#storeEvents().then(() => hasBacklog && this.#sender?.catchUp(queued));
    const without = metrics.filter((metric) => !this.#hasBudget(device, metric, now));
    if (without.length) this.#warn(`no room in the budget for ${without.map(({ name }) => name)}`);
    return this.#identity;
  }

  /**
   * Return whether a metric has budget and is not stopped.
   * @param {Device} device
   * @param {Metric} metric
   * @param {number} now
   */
  #mayReport(device, metric, now) {
    return this.#hasBudget(device, metric, now) && !findStopEnd(device, metric.name, now);
  }

  /**
   * Return whether a metric has budget in the year of a time. The result is cached for a device record.
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

  /** Return the limits of the nats: the registry's total for a year, lowered by the cap of the host program. */
  #findNatLimits() {
    const { total, per } = this.#settings.cap;
    const ofRegistry = this.#registry.total;
    if (per === "life") return { year: ofRegistry, life: total };
    return { year: Math.min(ofRegistry, total), life: Infinity };
  }

  /**
   * Change documents of this identity in one transaction, all of them or none. Each transaction also prepares the
   * upload that leaves if the page ends.
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
    // A withdrawal during the transaction has forgotten the identity, and nothing of it may come back.
    if (this.#identity) [this.#lastDevice, this.#endUpload] = [device, upload];
    return result;
  }

  /**
   * Compute something from the documents, after the events in memory are stored. Return `otherwise` for an empty store
   * and for a store that cannot be read.
   * @template T
   * @param {(documents: Required<Documents>) => T} compute
   * @param {T} otherwise
   * @returns {Promise<T>}
   */
  #query(compute, otherwise) {
    return this.#runSafely(async () => {
      await this.#storeEvents();
      const documents = await this.#store.read(ALL);
      return documents.device ? compute(addDefaults(documents)) : otherwise;
    }, otherwise);
  }

  /**
   * Run an action: the failure boundary. Mistakes of the host program raise; every other failure is counted, and the
   * result is `otherwise`.
   * @template T
   * @param {() => Promise<T>} action
   * @param {T} [otherwise]
   * @param {number} [seconds] deadline of the action
   * @returns {Promise<T>}
   */
  async #runSafely(action, otherwise, seconds = PATIENCE) {
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
    // Consent was withdrawn in another tab, or the person has cleared the site's data. Nothing has failed.
    if (error instanceof IdentityChanged) return this.#forgetIdentity();
    this.#failureCount += 1;
    const isDamaged = error instanceof DamagedStoreError;
    if (isDamaged) this.#identity = this.#lastDevice = this.#endUpload = undefined;
    const name = error instanceof Error ? error.name : "error"; // not the message, which may contain a value
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
   * Log a line, unless another one was logged within WARN_SECONDS.
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

  #stopSending() {
    this.#sender?.stop();
    this.#uploader?.close();
    this.#sender = undefined;
  }

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
 * Return the first five names for a log line, quoted and shortened to 64 characters.
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
 * Return the key of a stored secret. A store in a file has its bytes in base64url.
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
  checkOption(Object.values(limits).every(isLimit), "queueLimits must be integers of at least 1");
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
 * Return the result of a flush with a reason, and with other properties in place of their defaults.
 * @param {FlushReason} reason
 * @param {Partial<FlushResult>} [more]
 * @returns {FlushResult}
 */
function createFlushResult(reason, more) {
  return { done: DONE_REASONS.includes(reason), reason, sent: 0, queued: 0, ...more };
}

/**
 * Return the result of a flush from its steps. The reason is, if reports are
 *
 * - not queued any more: a refusal in any step, else that reports were sent, or that nothing was queued;
 * - queued after a step that sent one: the time was over ("timeout");
 * - queued after another step: the last step with a failure or with a reason to wait, else "timeout". If the last step
 *   plans no other one, events could not be stored ("failed").
 * @param {Step[]} steps
 * @param {number} queued number of reports and of unstored events that are left
 */
function summarizeSteps(steps, queued) {
  const sent = steps.filter(({ reason }) => reason === "sent").length;
  const last = /** @type {Step} */ (steps.at(-1));
  const isDone = (/** @type {Step} */ { reason }) => reason === undefined || DONE_REASONS.includes(reason);
  const isHeldUp = queued && !(last.reason && DONE_REASONS.includes(last.reason));
  const obstacle = steps.reverse().find((step) =>
    queued ? isHeldUp && !isDone(step) : step.reason === "refused",
  );
  const isPlanned = last.nextAt < Infinity; // otherwise an event in memory counts as queued, and nothing else
  const failure = isPlanned ? "timeout" : "failed";
  const success = sent ? "sent" : "nothing queued";
  const { reason = queued ? failure : success, detail } = obstacle ?? {};
  const retryAt = isHeldUp && isPlanned ? last.nextAt : undefined;
  return createFlushResult(reason, { sent, queued, detail, retryAt });
}
