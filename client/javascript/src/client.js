// What a program embeds: record values, look at what was sent and spent, withdraw.
//
// A value is judged and kept in memory at once; what is there goes into the store soon, one transaction
// after another, and nothing leaves before that. A page that ends leaves the rest to the next one.

import { base64url, fromBase64url } from "./bytes.js";
import { bounded, dayOf, yearOf } from "./calendar.js";
import { PATIENCE, within } from "./deadline.js";
import { Damaged, count, newDevice } from "./device.js";
import { readValue } from "./encodings.js";
import { ALL, erased, isSound } from "./erasing.js";
import { ParamsError, RapporError } from "./errors.js";
import { Handover } from "./handover.js";
import { httpTransport } from "./http_transport.js";
import { indexedDbStore } from "./indexed_db_store.js";
import { keepAll } from "./keeping.js";
import { spentOf } from "./ledger.js";
import { Maker } from "./making.js";
import { loadNormalizers } from "./normalizers.js";
import { FAILED, KEPT, silent } from "./outcomes.js";
import { metricOf, readRegistry, recordedBy, refusedWith, together } from "./registry.js";
import { followClock, hasReserved, silentMetrics } from "./reservation.js";
import { hasDue, nextEnd, smallestTag, tagOf } from "./reservoir.js";
import { systemCoins } from "./responses.js";
import { keepParams } from "./scopes.js";
import { SECRET_BYTES, secretOf } from "./secret.js";
import { LONGEST_SLEEP, Sender, elapsed } from "./sender.js";
import { dropMetrics, nWaiting, sentOf } from "./spool.js";
import { silentUntil } from "./stops.js";
import { tabsOf } from "./tabs.js";
import { Uploader } from "./uploader.js";
import { newId } from "./wire.js";

/** @typedef {import("../index.js").Flushed} Flushed */
/** @typedef {import("../index.js").FlushReason} FlushReason */
/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").OpenOptions} OpenOptions */
/** @typedef {import("../index.js").Outcome} Outcome */
/** @typedef {import("../index.js").Registry} Registry */
/** @typedef {import("../index.js").SilentReason} SilentReason */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Documents} Documents */
/** @typedef {import("../documents.js").Recorded} Recorded */
/** @typedef {import("./keeping.js").Ready} Ready */
/** @typedef {import("./uploader.js").Step} Step */
/** @typedef {{ secret: CryptoKey, mark: string, maker: Maker }} Identity */

const CHANGING = ALL.slice(1); // all but the identity
const MOST_EVENTS = 1000; // in memory
const RETRY = 10; // seconds until a store that failed is tried again
const WARN_EVERY = 60;
const GRACE = 0.5; // seconds for the store beside the timeout of a flush
const DONE = ["nothing waiting", "sent", "refused"];

/** The identity has gone, or is another one, since it was read. */
class Changed extends Error {}

/** One device's telemetry in one store, which tabs share. */
export class Client {
  /** @type {Registry} */ #registry;
  /** @type {import("../index.js").Store} */ #store;
  /** @type {{ coins: import("../index.js").Coins, clock: import("../index.js").Clock, limits: import("../index.js").Limits, caps: { total: number, per: "year" | "life" }, normalizers: OpenOptions["normalizers"] }} */
  #settings;
  /** @type {boolean} */ #consent;
  /** @type {Set<string>} */ #optedOut = new Set();
  /** @type {Identity | undefined} */ #identity;
  /** @type {Device | undefined} as it was last seen; another tab may have changed it since */
  #seen;
  /** @type {{ device?: Device, year?: number, names: Set<string> }} who has no room in the budget */
  #silent = { names: new Set() };
  /** @type {import("../documents.js").Pending | undefined} what leaves if the page ends now */
  #atHand;
  /** @type {string | undefined} */ #disabled;
  #failures = 0;
  #warned = -Infinity;
  /** @type {Recorded[]} */ #queue = [];
  #page = "";
  #seq = 0;
  #dropped = 0;
  /** @type {Handover} */ #handover;
  /** @type {Promise<unknown> | undefined} */ #committing;
  /** @type {Promise<Identity> | undefined} */ #beginning;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #again;
  /** @type {import("./tabs.js").Tabs} */ #tabs;
  /** @type {Uploader | undefined} */ #uploader;
  /** @type {Sender | undefined} */ #sender;
  /** @type {import("./debug_door.js").DebugDoor | undefined} */ #door;

  /**
   * @param {Registry} registry
   * @param {OpenOptions} options
   * @param {import("../index.js").Store} store
   * @param {import("../index.js").Transport} [transport]
   */
  constructor(registry, options, store, transport) {
    const { caps, clock, coins = systemCoins, limits, normalizers, optedOut = [] } = options;
    this.#registry = registry;
    this.#store = store;
    this.#consent = options.consent;
    this.#settings = {
      coins,
      clock: bounded(clock),
      limits: { reports: 200, bytes: 200_000, log: 200, ...limits },
      caps: { total: Infinity, per: "year", ...caps },
      normalizers,
    };
    check(this.#settings);
    demand(typeof optedOut !== "string", "optedOut must be a list of names");
    this.#handover = new Handover(store);
    for (const name of optedOut) this.#refuse(name);
    this.#tabs = tabsOf(store.channel, (name) => (name ? this.#refuse(name) : this.#forget()));
    if (transport) {
      this.#uploader = new Uploader({
        ...this.#settings,
        transport,
        update: (work, strict) => within(this.#update(CHANGING, work, strict)),
        prepare: (documents) => this.#dropOptedOut(documents),
        together: (name) => together(registry, name),
        pace: (name) => registry.metrics.get(name) ?? { interval: "week" },
      });
      const { maxDelay = 60, background = true } = options;
      demand(maxDelay >= 0 && maxDelay < Infinity, "maxDelay must be seconds, at least 0");
      if (background) this.#sender = new Sender((isBacklog) => this.#step({ isBacklog }), { ...this.#settings, maxDelay });
    }
    globalThis.addEventListener?.("pagehide", this.#leave);
    globalThis.document?.addEventListener("visibilitychange", this.#handOver);
  }

  /**
   * Open a device; see index.d.ts for the options.
   * @param {OpenOptions} options
   * @returns {Promise<Client>}
   */
  static async open(options) {
    const { name = "telemetry", consent, store = indexedDbStore(name), collector, key } = options;
    const { debug, segment = {} } = options;
    demand(typeof consent === "boolean", "consent must be true or false");
    const isNamed = Object.values(segment).every((value) => typeof value === "string");
    demand(isNamed, "segment must be texts by name");
    // before what may be wrong with the program
    if (!consent) await within(erased(store, options.clock)).catch(() => {}); // it goes on
    const transport = options.transport ?? (collector ? httpTransport(collector, key) : undefined);
    const isSecure = Boolean(globalThis.crypto?.subtle);
    const registry = isSecure ? await readRegistry(options.registry, segment) : { total: 0, metrics: new Map() };
    demand(!debug || collector, "debug must have a collector");
    const client = new Client(registry, options, store, transport);
    if (debug && consent && isSecure) {
      const { DebugDoor } = await import("./debug_door.js"); // for developers only
      const told = await readRegistry(options.registry);
      client.#door = new DebugDoor(told, httpTransport(String(collector), debug, "/v1/debug"));
    }
    if (!isSecure) client.#disable("a page must be of https or of localhost");
    else if (consent) await client.#safely(() => client.#begin());
    return client;
  }

  /** Why nothing is recorded, undefined if it is; a store that answers again ends it. */
  get disabled() {
    return this.#disabled;
  }

  /** The metrics, by name, with what they say to people. */
  get metrics() {
    return this.#registry.metrics;
  }

  /**
   * Keep a noisy report of a value for sending.
   * @param {string} name
   * @param {unknown} value
   * @returns {Outcome}
   */
  record(name, value) {
    if (this.#disabled && !this.#registry.metrics.size) return silent("disabled"); // none could be read
    const metrics = recordedBy(this.#registry, name);
    const now = this.#settings.clock();
    const refusal = this.#refusal(metrics[0], dayOf(now));
    if (refusal) return silent(refusal);
    this.#door?.show(name);
    const read = metrics.map(({ params }) => readValue(params, value)); // before the secret is touched
    const event = {
      page: this.#page,
      seq: this.#seq,
      name,
      told: read.map(({ told }) => told),
      params: metrics.map(({ fingerprint }) => fingerprint),
      now,
      tag: tagOf(this.#settings.coins),
      isFit: read[0].isFit,
    };
    const outcome = this.#judged(metrics, event);
    if (outcome) return outcome;
    if (this.#queue.length >= MOST_EVENTS) {
      this.#dropped += 1;
      return FAILED;
    }
    this.#seq += 1;
    this.#queue.push(event);
    this.#commit();
    if (globalThis.document?.hidden) this.#handOver(); // it may end at once
    return KEPT;
  }

  /**
   * Send what waits now, within some seconds, and say why it ended.
   * @param {{ timeout?: number }} options
   * @returns {Promise<Flushed>}
   */
  async flush({ timeout = 10 } = {}) {
    demand(timeout >= 0, "timeout must be seconds, at least 0");
    const hurry = { deadline: elapsed() + timeout, tried: new Set(), isOver: false };
    const whole = this.#safely(() => this.#flushed(hurry), flushed("failed"), timeout + GRACE);
    return whole.finally(() => (hurry.isOver = true));
  }

  /** Return how many finished reports have no answer yet. */
  waiting() {
    return this.#look(({ spool }) => nWaiting(spool), 0);
  }

  /** Return the loss so far, in nats: in all, by metric, and what is reserved by year. */
  spent() {
    return this.#look(({ device }) => spentOf(device), spentOf(newDevice()));
  }

  /** Return what has left the device, the very bytes, the oldest first. */
  log() {
    return this.#look(({ spool, log }) => sentOf(spool, log, this.#atHand), []);
  }

  /** Return how many reports were recorded, accepted, dropped or refused, and why. */
  async counters() {
    const counted = await this.#look(({ device }) => ({ ...device.counters }), {});
    return this.#failures ? { ...counted, failures: this.#failures } : counted;
  }

  /**
   * Refuse a metric from now on and drop its waiting reports. The page keeps the choice.
   * @param {string} name
   */
  async optOut(name) {
    this.#refuse(metricOf(this.#registry, name).name);
    this.#tabs.tell(name);
    await this.#safely(() => this.#update(CHANGING, (all) => this.#dropOptedOut(all)));
  }

  /** End consent: erase everything but the nats reserved, and say what was verified. */
  async withdraw() {
    this.#forget();
    return erased(this.#store, this.#settings.clock);
  }

  /** Store what is in memory and end the background sender; what waits stays in the store. */
  async close() {
    await this.#door?.close();
    this.#stopSending();
    await this.#safely(() => this.#commit().then(() => this.#store.close()));
    this.#handOver();
    this.#stopListening();
    this.#tabs.close();
  }

  /**
   * Return why nothing of a metric is looked at.
   * @param {Metric} metric
   * @param {string} today
   * @returns {SilentReason | undefined}
   */
  #refusal(metric, today) {
    if (!this.#consent) return "no consent";
    const isRetried = !this.#identity && !this.#beginning; // the store may answer by now
    if (isRetried) this.#safely(() => this.#begin());
    if (this.#disabled) return "disabled";
    if (this.#optedOut.has(metric.name)) return "opted out";
    return today > metric.expires ? "expired" : undefined;
  }

  /**
   * Return what becomes of a value that the store need not know of: its metric is silent, or another
   * report of the interval leaves in any case. undefined if the store must know.
   * @param {Metric[]} metrics
   * @param {Recorded} event
   * @returns {Outcome | undefined}
   */
  #judged(metrics, { now, tag }) {
    const [device, maker] = [this.#seen, this.#identity?.maker];
    if (!device || !maker) return undefined;
    const [asked] = metrics;
    const day = dayOf(now);
    if (silentUntil(device, together(this.#registry, asked.name), now)) return silent("stopped");
    if (!this.#hasRoom(device, metrics, now)) return silent("budget");
    const silence = maker.silence(device, asked, day);
    if (silence) return silent(silence);
    const isReserved = metrics.every((metric) => hasReserved(device, metric, yearOf(now)));
    if (asked.interval === "none" || !isReserved || hasDue(device, now)) return undefined;
    const smallest = smallestTag(device, metrics, now);
    if (smallest === undefined) return silent("interval");
    return tag >= smallest ? KEPT : undefined;
  }

  /** Bring what is in memory into the store, one batch after another; it never rejects. */
  #commit() {
    this.#committing ??= this.#committed();
    return this.#committing;
  }

  async #committed() {
    try {
      await undefined; // what is recorded in one go is one batch
      /** @type {Map<Recorded, Ready>} */
      const ready = new Map();
      while (this.#consent && this.#queue.length) {
        clearTimeout(this.#again);
        this.#again = setTimeout(() => this.#commit(), 1000 * RETRY); // if this one fails
        /** @type {any} */ (this.#again).unref?.(); // in Node it keeps no program alive
        const { maker } = this.#identity ?? (await this.#begin());
        const fresh = this.#queue.filter((event) => !ready.has(event));
        for (const each of await Promise.all(fresh.map((event) => this.#made(maker, event)))) {
          ready.set(each.event, each);
        }
        const batch = this.#queue.flatMap((event) => ready.get(event) ?? []);
        const n = await within(this.#stored(batch));
        if (n < batch.length) await maker.complete(batch[n].answers);
        if (n) this.#sender?.nudge();
      }
      clearTimeout(this.#again);
    } catch (error) {
      this.#failed(error);
    } finally {
      this.#committing = undefined;
    }
  }

  /**
   * Store the first values of some, and return how many.
   * @param {Ready[]} batch
   * @returns {Promise<number>}
   */
  async #stored(batch) {
    const dropped = this.#dropped;
    const n = await this.#update(["device", "spool"], (all) => {
      if (dropped) count(all.device, "dropped_full", dropped);
      return keepAll(all, batch, this.#settings, (own, metrics, now) => this.#speaks(own, metrics, now));
    });
    this.#dropped -= dropped;
    this.#settle(batch.slice(0, n).map(({ event }) => event));
    return n;
  }

  /**
   * Make what may enter the scopes of a value's metrics; nothing where they are silent by now, or
   * others than when it was recorded.
   * @param {Maker} maker
   * @param {Recorded} event
   * @returns {Promise<Ready>}
   */
  async #made(maker, event) {
    const device = /** @type {Device} */ (this.#seen); // there is one where there is an identity
    const names = together(this.#registry, event.name);
    const metrics = names.flatMap((name) => this.#registry.metrics.get(name) ?? []);
    const day = dayOf(event.now);
    const isSame = metrics.map(({ fingerprint }) => fingerprint).join() === event.params.join();
    if (isSame) await maker.place(device, metrics[0], day);
    const isSilent = !isSame || maker.silence(device, metrics[0], day);
    const speaking = isSilent ? [] : metrics;
    const entering = speaking.map((metric, i) => maker.entering(device, metric, event.told[i], day));
    return { event, metrics: speaking, answers: await Promise.all(entering) };
  }

  /** Leave what is not in the store yet to the next page, for this one may end. */
  #handOver = () => {
    const secret = this.#identity?.secret;
    if (secret && this.#handover.leave(this.#queue)) {
      this.#safely(() => this.#handover.prepare(secret)); // if the page goes on
    }
  };

  /** @param {import("./uploader.js").FlushHurry} hurry */
  async #flushed(hurry) {
    /** @type {Step[]} */
    const steps = [];
    const { deadline, tried } = hurry;
    if (this.#consent && !this.#identity) await this.#begin();
    await this.#commit();
    while (this.#consent && this.#uploader && !hurry.isOver) {
      const step = await this.#step(hurry);
      steps.push(step);
      if (step.id) tried.add(step.id);
      const waiting = step.waiting || (await this.waiting()); // also what is in memory only
      const pause = Math.max(step.due - this.#settings.clock(), 0);
      if (!waiting || pause >= deadline - elapsed()) return summedUp(steps, waiting);
      const sleep = 1000 * Math.min(pause, LONGEST_SLEEP); // no timer takes more than 24 days
      await new Promise((resolve) => setTimeout(resolve, sleep));
    }
    const waiting = await this.waiting();
    const reason = this.#consent ? "no collector" : "no consent";
    return flushed(waiting ? reason : "nothing waiting", { waiting });
  }

  /**
   * Take one step of sending, which no other tab takes at the same time.
   * @param {import("./uploader.js").Hurry} [hurry]
   * @returns {Promise<Step>}
   */
  async #step(hurry) {
    const uploader = /** @type {Uploader} */ (this.#uploader);
    const busy = { due: this.#settings.clock() + 1, reason: /** @type {const} */ ("busy") };
    const step = () => this.#tabs.alone(() => uploader.step(hurry), busy);
    const failed = { due: this.#settings.clock() + 3600, reason: /** @type {const} */ ("failed") };
    return this.#safely(step, failed, Infinity);
  }

  /** @param {string} name */
  #refuse(name) {
    for (const each of refusedWith(this.#registry, name)) this.#optedOut.add(each);
    this.#uploader?.drop();
    this.#settle([]);
  }

  /**
   * Let neither what is stored nor what the person has refused wait in memory, or for the next page.
   * @param {Recorded[]} stored
   */
  #settle(stored) {
    const isDone = new Set(stored);
    this.#queue = this.#queue.filter((event) => !isDone.has(event) && !this.#optedOut.has(event.name));
    this.#handover.settle(this.#queue);
  }

  /** @param {Required<Documents>} documents */
  #dropOptedOut({ device, spool, log }) {
    const { clock, limits } = this.#settings;
    const at = { now: clock(), limits, atHand: this.#atHand };
    dropMetrics(device, spool, log, this.#optedOut, at);
  }

  /** Send the upload at hand while the page ends. If no answer is seen, it is sent once more. */
  #leave = () => {
    this.#handOver();
    const [upload, seen] = [this.#atHand, this.#seen];
    this.#atHand = undefined;
    if (!upload || !seen || this.#optedOut.has(upload.metric)) return;
    this.#safely(async () => this.#uploader?.leave(seen, upload));
  };

  /** Become the store's device, or a new one, once at a time; who does not answer is asked again. */
  #begin() {
    this.#beginning ??= within(this.#begun()).finally(() => (this.#beginning = undefined));
    return this.#beginning;
  }

  /** Find the device, or make one, and bring it in line with the person's choices. */
  async #begun() {
    const bytes = crypto.getRandomValues(new Uint8Array(SECRET_BYTES));
    const fresh = {
      mark: newId(),
      secret: this.#store.holdsKeys ? await secretOf(bytes) : base64url(bytes),
    };
    bytes.fill(0);
    const old = Number((await this.#store.read(["device"])).device?.v) === 1;
    const takenOver = old ? (await import("./version_1.js")).takenOver : undefined;
    const now = this.#settings.clock();
    const metrics = [...this.#registry.metrics.values()];
    const { identity, device, spool } = await this.#store.update(
      ALL,
      (all) => {
        if (!this.#consent) throw new Changed(); // it was withdrawn meanwhile
        if (Number(all.device?.v) === 1) all.device = takenOver?.(all.device);
        if (!all.identity && !all.device?.mark) {
          Object.assign(all, { identity: fresh, device: newDevice(fresh.mark, all.device) });
        }
        if (!all.identity || !isSound(all)) throw new Damaged();
        const documents = whole(all);
        this.#dropOptedOut(documents);
        followClock(documents.device, yearOf(now));
        keepParams(documents.device, metrics);
        return documents;
      },
      { strict: true },
    );
    const secret = await keyOf(identity.secret);
    const normalizers = new Set(metrics.map(({ params }) => params.normalize));
    await loadNormalizers(normalizers, this.#settings.normalizers);
    const maker = new Maker(secret);
    await Promise.all(metrics.map((metric) => maker.place(device, metric, dayOf(now))));
    if (this.#identity) return this.#identity; // this answer comes late, and another one came meanwhile
    this.#page ||= newId();
    this.#queue.unshift(...(await this.#handover.found(secret)));
    this.#settle([]);
    await this.#handover.prepare(secret);
    if (!this.#consent) throw new Changed();
    this.#seen = device;
    this.#identity = { secret, mark: identity.mark, maker };
    this.#disabled = undefined;
    const waiting = nWaiting(spool);
    const isLeft = waiting || this.#queue.length || nextEnd(device) < Infinity;
    this.#commit().then(() => isLeft && this.#sender?.catchUp(waiting));
    const without = metrics.filter((metric) => !this.#hasRoom(device, [metric], now));
    if (without.length) this.#warn(`no room in the budget for ${without.map(({ name }) => name)}`);
    return this.#identity;
  }

  /**
   * Return whether metrics have room in the budget and are not stopped; values do not matter.
   * @param {Device} device
   * @param {Metric[]} metrics
   * @param {number} now
   */
  #speaks(device, metrics, now) {
    const names = metrics.map(({ name }) => name);
    return this.#hasRoom(device, metrics, now) && !silentUntil(device, names, now);
  }

  /**
   * @param {Device} device
   * @param {Metric[]} metrics
   * @param {number} now
   */
  #hasRoom(device, metrics, now) {
    const year = yearOf(now);
    if (this.#silent.device !== device || this.#silent.year !== year) {
      const names = silentMetrics(device, this.#registry, this.#limits(), year);
      this.#silent = { device, year, names };
    }
    return !metrics.some(({ name }) => this.#silent.names.has(name));
  }

  #limits() {
    const { total, per } = this.#settings.caps;
    const own = this.#registry.total;
    if (per === "life") return { year: own, life: total };
    return { year: Math.min(own, total), life: Infinity };
  }

  /**
   * Change documents of this identity, all of it or nothing. Device and spool are among them.
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
      (all) => {
        if (!this.#identity || all.device?.mark !== this.#identity.mark) throw new Changed();
        if (!isSound(all)) throw new Damaged();
        const documents = /** @type {Required<Documents>} */ (all); // #begin has written each
        const result = work(documents);
        const isPage = this.#sender && this.#store.channel !== undefined;
        const upload = isPage && this.#uploader?.atHand(documents, this.#atHand);
        return /** @type {const} */ ([result, documents.device, upload || undefined]);
      },
      { strict },
    );
    if (this.#identity) [this.#seen, this.#atHand] = [device, upload]; // no withdrawal meanwhile
    return result;
  }

  /**
   * Ask the store, after what is in memory is there; answer with `otherwise` where there is nothing,
   * or it cannot be read.
   * @template T
   * @param {(documents: Required<Documents>) => T} question
   * @param {T} otherwise
   * @returns {Promise<T>}
   */
  #look(question, otherwise) {
    return this.#safely(async () => {
      await this.#commit();
      const all = await this.#store.read(ALL);
      return all.device ? question(whole(all)) : otherwise;
    }, otherwise);
  }

  /**
   * Run an action; whatever fails but the program itself is counted and answered.
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
      this.#failed(error);
      return /** @type {T} */ (otherwise);
    }
  }

  /** @param {unknown} error */
  #failed(error) {
    if (error instanceof Changed) return this.#forget(); // by another tab, or with the site's data
    this.#failures += 1;
    const isDamaged = error instanceof Damaged;
    if (isDamaged) this.#identity = this.#seen = this.#atHand = undefined;
    const name = error instanceof Error ? error.name : "error";
    if (this.#identity) this.#warn(`telemetry failed: ${name}`);
    else this.#disable(isDamaged ? "the device is damaged" : `it cannot be opened: ${name}`);
  }

  /** @param {string} reason */
  #disable(reason) {
    this.#disabled ??= reason;
    this.#warn(`telemetry is disabled: ${reason}`);
  }

  /** @param {string} text */
  #warn(text) {
    const now = this.#settings.clock();
    if (Math.abs(now - this.#warned) < WARN_EVERY) return;
    this.#warned = now;
    console.warn(`rappor: ${text}`);
  }

  /** Forget everything true, and send nothing more. */
  #forget() {
    this.#consent = false;
    this.#identity = this.#seen = this.#atHand = this.#disabled = undefined;
    this.#queue = [];
    this.#door?.sever();
    this.#stopSending();
    this.#stopListening();
  }

  #stopSending() {
    this.#sender?.stop();
    this.#uploader?.close();
    this.#sender = undefined;
  }

  #stopListening() {
    clearTimeout(this.#again);
    globalThis.removeEventListener?.("pagehide", this.#leave);
    globalThis.document?.removeEventListener("visibilitychange", this.#handOver);
  }
}

/**
 * Return documents with an empty one in the place of each that is absent.
 * @param {Documents} all
 * @returns {Required<Documents>}
 */
function whole(all) {
  all.spool = { reports: [], uploads: [], last: {}, ...all.spool };
  all.log ??= [];
  return /** @type {Required<Documents>} */ (all);
}

/**
 * @param {object | string} secret
 * @returns {Promise<CryptoKey>}
 */
async function keyOf(secret) {
  if (typeof secret !== "string") return /** @type {CryptoKey} */ (secret);
  const bytes = fromBase64url(secret);
  if (bytes.length !== SECRET_BYTES) throw new Damaged();
  return secretOf(bytes);
}

/** @param {{ limits: import("../index.js").Limits, caps: { total: number, per: string } }} settings */
function check({ limits, caps }) {
  const isLimit = (/** @type {number} */ limit) => Number.isInteger(limit) && limit > 0;
  demand(Object.values(limits).every(isLimit), "limits must be integers of at least 1");
  const isCap = caps.total >= 0 && ["year", "life"].includes(caps.per);
  demand(isCap, "caps must be at least 0, per year or life");
}

/**
 * @param {unknown} holds
 * @param {string} sentence
 */
function demand(holds, sentence) {
  if (!holds) throw new ParamsError(sentence);
}

/**
 * @param {FlushReason} reason
 * @param {Partial<Flushed>} [more]
 * @returns {Flushed}
 */
function flushed(reason, more) {
  return { done: DONE.includes(reason), reason, sent: 0, waiting: 0, ...more };
}

/**
 * Return what the steps of one flush come to.
 * @param {Step[]} steps
 * @param {number} waiting
 */
function summedUp(steps, waiting) {
  const n = steps.filter(({ reason }) => reason === "sent").length;
  const last = /** @type {Step} */ (steps.at(-1));
  const isHeldUp = waiting && !DONE.includes(last.reason ?? "");
  const told = steps.reverse().find(({ reason }) =>
    waiting ? isHeldUp && reason && !DONE.includes(reason) : reason === "refused",
  );
  const isPlanned = last.due < Infinity; // or it is not in the store
  const failure = isPlanned ? "timeout" : "failed";
  const { reason = waiting ? failure : n ? "sent" : "nothing waiting", detail } = told ?? {};
  const retryAt = isHeldUp && isPlanned ? last.due : undefined;
  return flushed(reason, { sent: n, waiting, detail, retryAt });
}
