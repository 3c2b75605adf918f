// The client that a page embeds: it records values, returns the sent uploads, and withdraws consent.
//
// record() checks a value and keeps it in memory. The events in memory are stored soon, one transaction after
// another, and nothing is sent before. A page that ends defers the events in memory to the next page.

import { canRelease, drawTag, nextEnd, smallestTag } from "./admission.js";
import { LONGEST_SLEEP, Sender, elapsed } from "./background.js";
import { base64url, fromBase64url } from "./bytes.js";
import { bounded, dayOf, yearOf } from "./calendar.js";
import { PATIENCE, within } from "./deadline.js";
import { DeferredEvents } from "./deferred_events.js";
import { readValue } from "./encodings.js";
import { ParamsError, RapporError } from "./errors.js";
import { httpTransport } from "./http_transport.js";
import { indexedDbStore } from "./indexed_db_store.js";
import { loadNormalizers } from "./normalizers.js";
import { FAILED, NOT_STORED, RECORDED, skipped } from "./outcome.js";
import { Preparation } from "./prepared.js";
import { privacySpent } from "./privacy_spent.js";
import { metricOf, readRegistry } from "./registry.js";
import { dateLoss, isReserved, metricsWithoutBudget } from "./reservation.js";
import { systemCoins } from "./responses.js";
import { storeParams } from "./scopes.js";
import { SECRET_BYTES, importSecret } from "./secret.js";
import { dropMetrics, queuedCount, sentUploads } from "./spool.js";
import { Damaged, count, lostYear, newDevice } from "./state.js";
import { stoppedUntil } from "./stops.js";
import { tabsOf } from "./tabs.js";
import { Uploader } from "./uploader.js";
import { newId } from "./wire.js";
import { ALL, erase, isSound } from "./withdrawal.js";
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
/** @typedef {{ secret: CryptoKey, secretId: string, preparation: Preparation }} Identity */

const CHANGING = ALL.slice(1); // all documents but the identity, which never changes
const MAX_EVENTS = 1000; // in memory
const RETRY = 10; // seconds until a store that failed is tried again
const WARN_EVERY = 60; // seconds between two log lines
const GRACE = 0.5; // seconds for the store, beside the timeout of a flush
/** @type {FlushReason[]} reasons after which nothing is queued */
const DONE = ["nothing queued", "sent", "refused"];

/** The identity in the store is gone, or is another one than this client opened. */
class IdentityChanged extends Error {}

/** The telemetry of one device in one store. Tabs share the store. */
export class Client {
  /** @type {Registry} */ #registry;
  /** @type {import("../index.js").Store} */ #store;
  /** @type {{ coins: import("../index.js").Coins, clock: import("../index.js").Clock, limits: import("../index.js").QueueLimits, cap: { total: number, per: "year" | "life" }, normalizers: OpenOptions["normalizers"] }} */
  #settings;
  /** @type {boolean} */ #consent;
  /** @type {Set<string>} */ #optedOut = new Set();
  /** @type {Identity | undefined} */ #identity;
  /** @type {Device | undefined} the device of the last transaction; another tab may have changed it since */
  #seen;
  /** @type {{ device?: Device, year?: number, names: Set<string> }} metrics without budget, as last computed */
  #withoutBudget = { names: new Set() };
  /** @type {import("../documents.js").QueuedUpload | undefined} the upload that leaves if the page ends now */
  #atHand;
  /** @type {string | undefined} */ #disabledReason;
  #failures = 0;
  #warned = -Infinity;
  /** @type {RecordedEvent[]} */ #inMemory = [];
  #page = "";
  #seq = 0;
  #dropped = 0;
  /** @type {DeferredEvents} */ #deferred;
  /** @type {Promise<unknown> | undefined} */ #committing;
  /** @type {Promise<Identity> | undefined} */ #beginning;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #retry;
  /** @type {import("./tabs.js").Tabs} */ #tabs;
  /** @type {Uploader | undefined} */ #uploader;
  /** @type {Sender | undefined} */ #sender;

  /**
   * @param {Registry} registry
   * @param {OpenOptions} options
   * @param {import("../index.js").Store} store
   * @param {import("../index.js").Transport} [transport]
   */
  constructor(registry, options, store, transport) {
    const { budgetCap, clock, coins = systemCoins, normalizers, optedOut = [], queueLimits } = options;
    this.#registry = registry;
    this.#store = store;
    this.#consent = options.consent;
    this.#settings = {
      coins,
      clock: bounded(clock),
      limits: { reports: 200, bytes: 200_000, log: 200, ...queueLimits },
      cap: { total: Infinity, per: "year", ...budgetCap },
      normalizers,
    };
    checkSettings(this.#settings);
    check(typeof optedOut !== "string", "optedOut must be a list of names");
    const metrics = [...registry.metrics.values()];
    this.#deferred = new DeferredEvents(store, metrics.some(({ durable }) => durable));
    const refused = [...optedOut];
    for (const name of refused) this.#refuse(name);
    const unknown = metrics.length ? refused.filter((name) => !registry.metrics.has(name)) : [];
    // The choice of a person has no effect if the name is misspelt, so the program hears of it.
    if (unknown.length && options.consent) warn(`optedOut has names that no metric has: ${quoted(unknown)}`);
    this.#tabs = tabsOf(store.channel, (name) => (name ? this.#refuse(name) : this.#forget()));
    if (transport) {
      this.#uploader = new Uploader({
        ...this.#settings,
        transport,
        update: (work, strict) => within(this.#update(CHANGING, work, strict)),
        prepare: (documents) => this.#dropOptedOut(documents),
      });
      const { maxDelay = 60, background = true } = options;
      check(maxDelay >= 0 && maxDelay < Infinity, "maxDelay must be seconds, at least 0");
      if (background) this.#sender = new Sender((isBacklog) => this.#step({ isBacklog }), { ...this.#settings, maxDelay });
    }
    globalThis.addEventListener?.("pagehide", this.#endPage);
    globalThis.document?.addEventListener("visibilitychange", this.#defer);
  }

  /**
   * Open a device. index.d.ts documents the options.
   * @param {OpenOptions} options
   * @returns {Promise<Client>}
   */
  static async open(options) {
    const { name = "telemetry", consent, store = indexedDbStore(name), collector, uploadKey } = options;
    const { segment = {} } = options;
    check(typeof consent === "boolean", "consent must be true or false");
    const isRecord = Object.values(segment).every((value) => typeof value === "string");
    check(isRecord, "segment must be texts by name");
    // The erasure comes first: a mistake in another option must not keep data without consent.
    if (!consent) await within(erase(store, options.clock)).catch(() => {}); // it continues in the background
    const transport = options.transport ?? (collector ? httpTransport(collector, uploadKey) : undefined);
    const isSecure = Boolean(globalThis.crypto?.subtle);
    const registry = isSecure ? await readRegistry(options.registry, segment) : { total: 0, metrics: new Map() };
    const client = new Client(registry, options, store, transport);
    if (!isSecure) client.#disable("a page must be of https or of localhost");
    else if (consent) await client.#safely(() => client.#begin());
    return client;
  }

  /** Reason why nothing is recorded, undefined if the client is enabled. A store that responds again ends it. */
  get disabledReason() {
    return this.#disabledReason;
  }

  /** Whether there is consent, and nothing disables the client. */
  get isEnabled() {
    return this.#consent && this.#disabledReason === undefined;
  }

  /** The metrics by name, with their texts for people. */
  get metrics() {
    return this.#registry.metrics;
  }

  /**
   * Record a value of a metric.
   * @param {string} name
   * @param {unknown} value
   * @returns {Outcome}
   */
  record(name, value) {
    // Without WebCrypto no registry could be read, so no name can be checked.
    if (this.#disabledReason && !this.#registry.metrics.size) return skipped("disabled");
    const metric = metricOf(this.#registry, name);
    const timestamp = this.#settings.clock();
    const reason = this.#skipReason(metric, dayOf(timestamp));
    if (reason) return skipped(reason);
    const { input, fits } = readValue(metric.params, value); // before the secret is used
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
    const outcome = this.#outcomeWithoutStore(metric, event);
    if (outcome) return outcome;
    if (this.#inMemory.length >= MAX_EVENTS) {
      this.#dropped += 1;
      return FAILED;
    }
    this.#seq += 1;
    this.#inMemory.push(event);
    this.#commit();
    // A hidden page may end without a further event. A durable metric survives an end at any time.
    if (metric.durable || globalThis.document?.hidden) this.#defer();
    return metric.durable && !this.#deferred.has(event) ? NOT_STORED : RECORDED;
  }

  /**
   * Send queued reports within some seconds, and return why the flush ended.
   * @param {{ timeout?: number }} options
   * @returns {Promise<FlushResult>}
   */
  async flush({ timeout = 10 } = {}) {
    check(timeout >= 0, "timeout must be seconds, at least 0");
    const options = { deadline: elapsed() + timeout, tried: new Set(), isOver: false };
    const flushing = this.#safely(() => this.#flush(options), flushResult("failed"), timeout + GRACE);
    return flushing.finally(() => (options.isOver = true));
  }

  /** Return the number of finished reports without a response of the collector. */
  queuedCount() {
    return this.#query(({ spool }) => queuedCount(spool), 0);
  }

  /** Return the privacy loss so far in nats, in all and by metric, and the nats reserved by year. */
  privacySpent() {
    return this.#query(({ device }) => privacySpent(device), privacySpent(newDevice()));
  }

  /** Return the uploads that have left the device, the very bytes, the oldest first. */
  sentUploads() {
    return this.#query(({ spool, log }) => sentUploads(spool, log, this.#atHand), []);
  }

  /** Return the numbers of recorded, accepted, dropped and refused reports by event. */
  async eventCounts() {
    const counters = await this.#query(({ device }) => ({ ...device.counters }), {});
    return this.#failures ? { ...counters, failures: this.#failures } : counters;
  }

  /**
   * Refuse a metric from now on and drop its reports. The page must store the choice.
   * @param {string} name
   */
  async optOut(name) {
    this.#refuse(metricOf(this.#registry, name).name);
    this.#tabs.notify(name);
    await this.#safely(() => this.#update(CHANGING, (documents) => this.#dropOptedOut(documents)));
  }

  /** Withdraw consent: erase everything but the reserved nats, and return what was verified. */
  async withdraw() {
    this.#forget();
    return erase(this.#store, this.#settings.clock);
  }

  /** Store the events in memory and stop the background sender. Queued reports stay in the store. */
  async close() {
    this.#stopSending();
    await this.#safely(() => this.#commit().then(() => this.#store.close()));
    this.#defer();
    this.#stopListening();
    this.#tabs.close();
  }

  /**
   * Return why a metric is skipped whatever its value.
   * @param {Metric} metric
   * @param {string} today
   * @returns {SkipReason | undefined}
   */
  #skipReason(metric, today) {
    if (!this.#consent) return "no consent";
    // A store that failed at the opening may respond by now.
    const mayBegin = !this.#identity && !this.#beginning;
    if (mayBegin) this.#safely(() => this.#begin());
    if (this.#disabledReason) return "disabled";
    if (this.#optedOut.has(metric.name)) return "opted out";
    return today > metric.expires ? "expired" : undefined;
  }

  /**
   * Return the outcome of an event that the store need not know: the metric is skipped, or another event of
   * the interval wins in any case. Return undefined if the store must decide.
   * @param {Metric} metric
   * @param {RecordedEvent} event
   * @returns {Outcome | undefined}
   */
  #outcomeWithoutStore(metric, { timestamp, tag }) {
    const [device, preparation] = [this.#seen, this.#identity?.preparation];
    if (!device || !preparation) return undefined;
    if (stoppedUntil(device, metric.name, timestamp)) return skipped("stopped");
    if (!this.#hasBudget(device, metric, timestamp)) return skipped("budget");
    const reason = preparation.skipReason(device, metric, dayOf(timestamp));
    if (reason) return skipped(reason);
    const mustReserve = !isReserved(device, metric, yearOf(timestamp));
    if (mustReserve || canRelease(device, timestamp)) return undefined;
    const smallest = smallestTag(device, metric, timestamp);
    if (smallest === undefined) return skipped("interval");
    return tag >= smallest ? RECORDED : undefined;
  }

  /** Store the events in memory, one batch after another. The promise never rejects. */
  #commit() {
    this.#committing ??= this.#storeAll();
    return this.#committing;
  }

  async #storeAll() {
    try {
      await undefined; // all events of one task become one batch
      /** @type {Map<RecordedEvent, ReadyEvent>} */
      const ready = new Map();
      while (this.#consent && this.#inMemory.length) {
        clearTimeout(this.#retry);
        this.#retry = setTimeout(() => this.#commit(), 1000 * RETRY); // in case this attempt fails
        /** @type {any} */ (this.#retry).unref?.(); // in Node it keeps no program alive
        const { preparation } = this.#identity ?? (await this.#begin());
        const fresh = this.#inMemory.filter((event) => !ready.has(event));
        const prepared = await Promise.all(fresh.map((event) => this.#prepare(preparation, event)));
        for (const item of prepared) ready.set(item.event, item);
        const batch = this.#inMemory.flatMap((event) => ready.get(event) ?? []);
        const n = await within(this.#storeBatch(batch));
        // The first event that was not stored begins a scope: it needs its permanent response.
        const { admissible } = batch[n] ?? {};
        if (admissible) await preparation.addPermanent(admissible.value);
        if (n) this.#sender?.nudge();
      }
      clearTimeout(this.#retry);
    } catch (error) {
      this.#handleFailure(error);
    } finally {
      this.#committing = undefined;
    }
  }

  /**
   * Store the first events of a batch, and return their number.
   * @param {ReadyEvent[]} batch
   * @returns {Promise<number>}
   */
  async #storeBatch(batch) {
    const dropped = this.#dropped;
    const n = await this.#update(["device", "spool"], (documents) => {
      if (dropped) count(documents.device, "dropped_full", dropped);
      return storeEvents(documents, batch, this.#settings, (device, metric, now) =>
        this.#mayReport(device, metric, now),
      );
    });
    this.#dropped -= dropped;
    this.#forgetEvents(batch.slice(0, n).map(({ event }) => event));
    return n;
  }

  /**
   * Prepare the value of an event. An event is not admissible if its metric is skipped by now, or if the
   * registry has another parameter set than when the event was recorded by an earlier page.
   * @param {Preparation} preparation
   * @param {RecordedEvent} event
   * @returns {Promise<ReadyEvent>}
   */
  async #prepare(preparation, event) {
    const device = /** @type {Device} */ (this.#seen); // defined together with the identity
    const metric = this.#registry.metrics.get(event.name);
    const day = dayOf(event.timestamp);
    if (metric?.fingerprint !== event.params) return { event };
    await preparation.decide(device, metric, day);
    if (preparation.skipReason(device, metric, day)) return { event };
    return { event, admissible: { metric, value: await preparation.prepare(device, metric, event.input, day) } };
  }

  /** Defer the events in memory to the next page, because this one may end. */
  #defer = () => {
    const secret = this.#identity?.secret;
    if (secret && this.#deferred.defer(this.#inMemory)) {
      this.#safely(() => this.#deferred.prepare(secret)); // if the page goes on
    }
  };

  /** @param {import("./uploader.js").FlushOptions} options */
  async #flush(options) {
    /** @type {Step[]} */
    const steps = [];
    const { deadline, tried } = options;
    if (this.#consent && !this.#identity) await this.#begin();
    await this.#commit();
    while (this.#consent && this.#uploader && !options.isOver) {
      const step = await this.#step(options);
      steps.push(step);
      if (step.id) tried.add(step.id);
      // Events that could not be stored are queued, too: otherwise a full disk would look like success.
      const queued = step.queued || (await this.queuedCount()) || this.#inMemory.length;
      const pause = Math.max(step.due - this.#settings.clock(), 0);
      if (!queued || pause >= deadline - elapsed()) return summaryOf(steps, queued);
      const sleep = 1000 * Math.min(pause, LONGEST_SLEEP); // a timer takes 24 days at most
      await new Promise((resolve) => setTimeout(resolve, sleep));
    }
    const queued = await this.queuedCount();
    const reason = this.#consent ? "no collector" : "no consent";
    return flushResult(queued ? reason : "nothing queued", { queued });
  }

  /**
   * Take one step of sending, unless another tab takes one.
   * @param {import("./uploader.js").StepOptions} [options]
   * @returns {Promise<Step>}
   */
  async #step(options) {
    const uploader = /** @type {Uploader} */ (this.#uploader);
    const busy = { due: this.#settings.clock() + 1, reason: /** @type {const} */ ("busy") };
    const step = () => this.#tabs.exclusively(() => uploader.step(options), busy);
    const failed = { due: this.#settings.clock() + 3600, reason: /** @type {const} */ ("failed") };
    return this.#safely(step, failed, Infinity);
  }

  /** @param {string} name */
  #refuse(name) {
    this.#optedOut.add(name);
    this.#uploader?.dropClaim();
    this.#forgetEvents([]);
  }

  /**
   * Forget events that are stored, and events of metrics that the person has refused.
   * @param {RecordedEvent[]} stored
   */
  #forgetEvents(stored) {
    const isDone = new Set(stored);
    this.#inMemory = this.#inMemory.filter((event) => !isDone.has(event) && !this.#optedOut.has(event.name));
    this.#deferred.removeStored(this.#inMemory);
  }

  /** @param {Required<Documents>} documents */
  #dropOptedOut({ device, spool, log }) {
    const { clock, limits } = this.#settings;
    const context = { now: clock(), limits, atHand: this.#atHand };
    dropMetrics(device, spool, log, this.#optedOut, context);
  }

  /** Send the upload at hand while the page ends. Its response is never seen, so it is sent once more. */
  #endPage = () => {
    this.#defer();
    const [upload, seen] = [this.#atHand, this.#seen];
    this.#atHand = undefined;
    if (!upload || !seen || this.#optedOut.has(upload.metric)) return;
    this.#safely(async () => this.#uploader?.sendAtPageEnd(seen, upload));
  };

  /** Open the identity, in one attempt at a time. A store that does not respond is asked again later. */
  #begin() {
    this.#beginning ??= within(this.#openIdentity()).finally(() => (this.#beginning = undefined));
    return this.#beginning;
  }

  /** Read the identity of the store or create one, and apply the choices of the person. */
  async #openIdentity() {
    const bytes = crypto.getRandomValues(new Uint8Array(SECRET_BYTES));
    const fresh = {
      secretId: newId(),
      secret: this.#store.holdsKeys ? await importSecret(bytes) : base64url(bytes),
    };
    bytes.fill(0);
    const now = this.#settings.clock();
    const metrics = [...this.#registry.metrics.values()];
    const { identity, device, spool } = await this.#store.update(
      ALL,
      (documents) => {
        if (!this.#consent) throw new IdentityChanged(); // consent was withdrawn meanwhile
        if (!documents.identity && !documents.device?.secretId) {
          const lost = documents.device ? undefined : lostYear(documents, now);
          const device = newDevice(fresh.secretId, documents.device ?? (lost ? { lost } : undefined));
          Object.assign(documents, { identity: fresh, device });
        }
        if (!documents.identity || !isSound(documents)) throw new Damaged();
        const complete = withDefaults(documents);
        this.#dropOptedOut(complete);
        dateLoss(complete.device, yearOf(now));
        storeParams(complete.device, metrics);
        return complete;
      },
      { strict: true },
    );
    const secret = await readSecret(identity.secret);
    const normalizers = new Set(metrics.map(({ params }) => params.normalize));
    await loadNormalizers(normalizers, this.#settings.normalizers);
    const preparation = new Preparation(secret);
    await Promise.all(metrics.map((metric) => preparation.decide(device, metric, dayOf(now))));
    if (this.#identity) return this.#identity; // an attempt that was given up ends after a later one
    this.#page ||= newId();
    this.#inMemory.unshift(...(await this.#deferred.read(secret)));
    this.#forgetEvents([]);
    await this.#deferred.prepare(secret);
    if (!this.#consent) throw new IdentityChanged();
    this.#seen = device;
    this.#identity = { secret, secretId: identity.secretId, preparation };
    this.#disabledReason = undefined;
    const queued = queuedCount(spool);
    const hasBacklog = queued || this.#inMemory.length || nextEnd(device) < Infinity;
    this.#commit().then(() => hasBacklog && this.#sender?.catchUp(queued));
    const without = metrics.filter((metric) => !this.#hasBudget(device, metric, now));
    if (without.length) this.#warn(`no room in the budget for ${without.map(({ name }) => name)}`);
    return this.#identity;
  }

  /**
   * Return whether a metric has budget and is not stopped. Values do not matter.
   * @param {Device} device
   * @param {Metric} metric
   * @param {number} now
   */
  #mayReport(device, metric, now) {
    return this.#hasBudget(device, metric, now) && !stoppedUntil(device, metric.name, now);
  }

  /**
   * @param {Device} device
   * @param {Metric} metric
   * @param {number} now
   */
  #hasBudget(device, metric, now) {
    const year = yearOf(now);
    if (this.#withoutBudget.device !== device || this.#withoutBudget.year !== year) {
      const names = metricsWithoutBudget(device, this.#registry, this.#natLimits(), year);
      this.#withoutBudget = { device, year, names };
    }
    return !this.#withoutBudget.names.has(metric.name);
  }

  #natLimits() {
    const { total, per } = this.#settings.cap;
    const ofRegistry = this.#registry.total;
    if (per === "life") return { year: ofRegistry, life: total };
    return { year: Math.min(ofRegistry, total), life: Infinity };
  }

  /**
   * Change documents of this identity, all of them or none. Device and spool must be among them.
   * @template T
   * @param {(keyof Documents)[]} names
   * @param {(documents: Required<Documents>) => T} work
   * @param {boolean} [strict]
   * @returns {Promise<T>}
   */
  async #update(names, work, strict = false) {
    if (this.#consent && !this.#identity) await this.#begin();
    const [result, device, upload] = await this.#store.update(
      names,
      (documents) => {
        const isSame = this.#identity && documents.device?.secretId === this.#identity.secretId;
        if (!isSame) throw new IdentityChanged();
        if (!isSound(documents)) throw new Damaged();
        const complete = /** @type {Required<Documents>} */ (documents); // #openIdentity wrote all of them
        const result = work(complete);
        const isPage = this.#sender && this.#store.channel !== undefined;
        const upload = isPage && this.#uploader?.uploadAtHand(complete, this.#atHand);
        return /** @type {const} */ ([result, complete.device, upload || undefined]);
      },
      { strict },
    );
    // A withdrawal during the transaction has forgotten the identity.
    if (this.#identity) [this.#seen, this.#atHand] = [device, upload];
    return result;
  }

  /**
   * Return a property of the documents, after the events in memory are stored. Return `otherwise` for an
   * empty store or a store that cannot be read.
   * @template T
   * @param {(documents: Required<Documents>) => T} property
   * @param {T} otherwise
   * @returns {Promise<T>}
   */
  #query(property, otherwise) {
    return this.#safely(async () => {
      await this.#commit();
      const documents = await this.#store.read(ALL);
      return documents.device ? property(withDefaults(documents)) : otherwise;
    }, otherwise);
  }

  /**
   * The failure boundary: run an action, raise mistakes of the program, and count every other failure.
   * @template T
   * @param {() => Promise<T>} action
   * @param {T} [otherwise]
   * @param {number} [seconds]
   * @returns {Promise<T>}
   */
  async #safely(action, otherwise, seconds = PATIENCE) {
    try {
      return await within(action(), seconds);
    } catch (error) {
      if (error instanceof RapporError) throw error;
      this.#handleFailure(error);
      return /** @type {T} */ (otherwise);
    }
  }

  /** @param {unknown} error */
  #handleFailure(error) {
    // Another tab has withdrawn, or the person has cleared the site's data.
    if (error instanceof IdentityChanged) return this.#forget();
    this.#failures += 1;
    const isDamaged = error instanceof Damaged;
    if (isDamaged) this.#identity = this.#seen = this.#atHand = undefined;
    const name = error instanceof Error ? error.name : "error"; // the message may contain a value
    if (this.#identity) this.#warn(`telemetry failed: ${name}`);
    else this.#disable(isDamaged ? "the device is damaged" : `it cannot be opened: ${name}`);
  }

  /** @param {string} reason */
  #disable(reason) {
    this.#disabledReason ??= reason;
    this.#warn(`telemetry is disabled: ${reason}`);
  }

  /** @param {string} text */
  #warn(text) {
    const now = this.#settings.clock();
    if (Math.abs(now - this.#warned) < WARN_EVERY) return;
    this.#warned = now;
    warn(text);
  }

  /** Forget the identity and all events, and send nothing more. */
  #forget() {
    this.#consent = false;
    this.#identity = this.#seen = this.#atHand = this.#disabledReason = undefined;
    this.#inMemory = [];
    this.#stopSending();
    this.#stopListening();
  }

  #stopSending() {
    this.#sender?.stop();
    this.#uploader?.close();
    this.#sender = undefined;
  }

  #stopListening() {
    clearTimeout(this.#retry);
    globalThis.removeEventListener?.("pagehide", this.#endPage);
    globalThis.document?.removeEventListener("visibilitychange", this.#defer);
  }
}

/** @param {string} text */
function warn(text) {
  console.warn(`rappor: ${text}`);
}

/**
 * Return some names for a log line, quoted and shortened.
 * @param {string[]} names
 */
function quoted(names) {
  return names.slice(0, 5).map((name) => JSON.stringify(String(name).slice(0, 64)));
}

/**
 * Add an empty spool and an empty log where the store has none.
 * @param {Documents} documents
 * @returns {Required<Documents>}
 */
function withDefaults(documents) {
  documents.spool = { reports: [], uploads: [], last: {}, ...documents.spool };
  documents.log ??= [];
  return /** @type {Required<Documents>} */ (documents);
}

/**
 * @param {object | string} secret
 * @returns {Promise<CryptoKey>}
 */
async function readSecret(secret) {
  if (typeof secret !== "string") return /** @type {CryptoKey} */ (secret);
  const bytes = fromBase64url(secret);
  if (bytes.length !== SECRET_BYTES) throw new Damaged();
  return importSecret(bytes);
}

/** @param {{ limits: import("../index.js").QueueLimits, cap: { total: number, per: string } }} settings */
function checkSettings({ limits, cap }) {
  const isLimit = (/** @type {number} */ limit) => Number.isInteger(limit) && limit > 0;
  check(Object.values(limits).every(isLimit), "queueLimits must be integers of at least 1");
  const isCap = cap.total >= 0 && ["year", "life"].includes(cap.per);
  check(isCap, "budgetCap must be at least 0, per year or life");
}

/**
 * @param {unknown} holds
 * @param {string} sentence
 */
function check(holds, sentence) {
  if (!holds) throw new ParamsError(sentence);
}

/**
 * @param {FlushReason} reason
 * @param {Partial<FlushResult>} [more]
 * @returns {FlushResult}
 */
function flushResult(reason, more) {
  return { done: DONE.includes(reason), reason, sent: 0, queued: 0, ...more };
}

/**
 * Return the result of a flush with these steps. If reports are queued, the last obstacle is the reason.
 * @param {Step[]} steps
 * @param {number} queued
 */
function summaryOf(steps, queued) {
  const n = steps.filter(({ reason }) => reason === "sent").length;
  const last = /** @type {Step} */ (steps.at(-1));
  const isDone = (/** @type {Step} */ { reason }) => reason === undefined || DONE.includes(reason);
  const isHeldUp = queued && !(last.reason && DONE.includes(last.reason));
  const obstacle = steps.reverse().find((step) =>
    queued ? isHeldUp && !isDone(step) : step.reason === "refused",
  );
  const isPlanned = last.due < Infinity; // otherwise the event is in memory only
  const failure = isPlanned ? "timeout" : "failed";
  const success = n ? "sent" : "nothing queued";
  const { reason = queued ? failure : success, detail } = obstacle ?? {};
  const retryAt = isHeldUp && isPlanned ? last.due : undefined;
  return flushResult(reason, { sent: n, queued, detail, retryAt });
}
