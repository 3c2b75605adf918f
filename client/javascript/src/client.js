// What a program embeds: record values, look at what was sent and spent, withdraw.

import { base64url, concat, fromBase64url, utf8 } from "./bytes.js";
import { DAY, bounded, dayOf, epochAt, yearOf } from "./calendar.js";
import { within } from "./deadline.js";
import { Damaged, VERSION, count, newDevice, remainder } from "./device.js";
import { encode, fits, readValue } from "./encodings.js";
import { ParamsError, RapporError } from "./errors.js";
import { httpTransport } from "./http_transport.js";
import { indexedDbStore } from "./indexed_db_store.js";
import { spentOf } from "./ledger.js";
import { ONE } from "./params.js";
import { metricOf, readRegistry } from "./registry.js";
import { followClock, keepReserved, silentMetrics } from "./reservation.js";
import { nextEnd, offer, release, settleReport } from "./reservoir.js";
import { choosePart, cohortOf, permanentOf, scopeCoin, scopeName, systemCoins } from "./responses.js";
import { answer, draw, inForce, isBegun, latchedPart, termsOf } from "./scopes.js";
import { SECRET_BYTES, expand, secretOf } from "./secret.js";
import { LONGEST_SLEEP, Sender, elapsed } from "./sender.js";
import { dropMetrics, sentOf, trim } from "./spool.js";
import { silentUntil } from "./stops.js";
import { tabsOf } from "./tabs.js";
import { Uploader, atHand } from "./uploader.js";
import { newId } from "./wire.js";

/** @typedef {import("../index.js").Flushed} Flushed */
/** @typedef {import("../index.js").FlushReason} FlushReason */
/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").OpenOptions} OpenOptions */
/** @typedef {import("../index.js").Outcome} Outcome */
/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../index.js").Registry} Registry */
/** @typedef {import("../documents.js").Device} Device */
/** @typedef {import("../documents.js").Documents} Documents */
/** @typedef {import("./scopes.js").Entering} Entering */
/** @typedef {import("./uploader.js").Step} Step */

const CHANGING = /** @type {(keyof Documents)[]} */ (["device", "spool", "log"]);
const ALL = /** @type {(keyof Documents)[]} */ (["identity", ...CHANGING]);
const PATTERN_BYTES = 16; // two patterns share a name with probability 2^-128
const WARN_EVERY = 60;
const PATIENCE = 2; // seconds that anybody waits for a store
const GRACE = 0.5; // seconds for the store beside the timeout of a flush
const DONE = ["nothing waiting", "sent", "refused"];
const SAFE = ["recorded", "held", "repeated"];

/** The identity has gone, or is another one, since it was read. */
class Changed extends Error {}

/** One device's telemetry in one store, which tabs share. */
export class Client {
  /** @type {Registry} */ #registry;
  /** @type {import("../index.js").Store} */ #store;
  /** @type {{ coins: import("../index.js").Coins, clock: import("../index.js").Clock, limits: import("../index.js").Limits, caps: { total: number, per: "year" | "life" } }} */
  #settings;
  /** @type {boolean} */ #consent;
  /** @type {Set<string>} */ #optedOut;
  /** @type {{ secret: CryptoKey, mark: string } | undefined} */ #identity;
  /** @type {Device | undefined} as it was last seen; another tab may have changed it since */
  #seen;
  /** @type {import("../documents.js").Pending | undefined} what leaves if the page ends now */
  #atHand;
  #isDamaged = false;
  /** @type {string | undefined} */ #disabled;
  /** @type {Promise<{ secret: CryptoKey, mark: string }> | undefined} */ #beginning;
  #failures = 0;
  #warned = -Infinity;
  /** @type {import("./tabs.js").Tabs} */ #tabs;
  /** @type {Uploader | undefined} */ #uploader;
  /** @type {Sender | undefined} */ #sender;
  #onPageHide = () => this.#leave();

  /**
   * @param {Registry} registry
   * @param {OpenOptions} options
   * @param {import("../index.js").Store} store
   * @param {import("../index.js").Transport} [transport]
   */
  constructor(registry, options, store, transport) {
    const { caps, clock, coins = systemCoins, limits, optedOut } = options;
    this.#registry = registry;
    this.#store = store;
    this.#consent = options.consent;
    this.#optedOut = new Set(optedOut);
    this.#settings = {
      coins,
      clock: bounded(clock),
      limits: { reports: 200, bytes: 200_000, log: 200, ...limits },
      caps: { total: Infinity, per: "year", ...caps },
    };
    check(this.#settings);
    demand(typeof optedOut !== "string", "optedOut must be a list of names");
    this.#tabs = tabsOf(store.channel, (name) => (name ? this.#optedOut.add(name) : this.#forget()));
    if (transport) {
      this.#uploader = new Uploader({
        ...this.#settings,
        transport,
        update: (work, strict) => this.#update(CHANGING, work, strict),
        prepare: (documents) => this.#dropOptedOut(documents),
      });
      const { maxDelay = 60, background = true } = options;
      demand(maxDelay >= 0 && maxDelay < Infinity, "maxDelay must be seconds, at least 0");
      if (background) {
        this.#sender = new Sender(() => this.#step(), { ...this.#settings, maxDelay });
        globalThis.addEventListener?.("pagehide", this.#onPageHide);
      }
    }
  }

  /**
   * Open a device; see index.d.ts for the options.
   * @param {OpenOptions} options
   * @returns {Promise<Client>}
   */
  static async open(options) {
    const { name = "telemetry", consent, store = indexedDbStore(name), collector, key } = options;
    demand(typeof consent === "boolean", "consent must be true or false");
    // before what may be wrong with the program
    if (!consent) await within(PATIENCE, erased(store, options.clock)).catch(() => {}); // it goes on
    const transport = options.transport ?? (collector ? httpTransport(collector, key) : undefined);
    const isSecure = Boolean(globalThis.crypto?.subtle);
    const registry = isSecure ? await readRegistry(options.registry) : { total: 0, metrics: new Map() };
    const client = new Client(registry, options, store, transport);
    if (!isSecure) client.#disable("a page must be of https or of localhost");
    else if (consent) await client.#safely(() => client.#begin(), undefined);
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
   * Prepare a noisy report of a value and keep it for sending.
   * @param {string} name
   * @param {unknown} value
   * @returns {Promise<Outcome>}
   */
  async record(name, value) {
    if (this.#disabled && !this.#registry.metrics.size) return "disabled"; // none could be read
    const metric = metricOf(this.#registry, name);
    /** @type {Outcome} */
    const failed = "failed";
    let outcome = await this.#safely(() => this.#recorded(metric, value), failed);
    if (outcome === failed) outcome = this.#refusal(metric) ?? failed;
    if (SAFE.includes(outcome)) this.#sender?.nudge();
    return outcome;
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
    return this.#look(({ spool }) => spool.reports.length + spool.uploads.length, 0);
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
    metricOf(this.#registry, name);
    this.#optedOut.add(name);
    this.#tabs.tell(name);
    await this.#safely(() => this.#update(CHANGING, (all) => this.#dropOptedOut(all)), undefined);
  }

  /** End consent: erase everything but the nats spent and reserved, and say what was verified. */
  async withdraw() {
    this.#forget();
    return erased(this.#store, this.#settings.clock);
  }

  /** End the background sender; what waits stays in the store. */
  async close() {
    this.#stopSending();
    this.#tabs.close();
    await this.#safely(() => this.#store.close(), undefined, PATIENCE / 2);
  }

  /**
   * @param {Metric} metric
   * @returns {Outcome | undefined}
   */
  #refusal(metric) {
    if (!this.#consent) return "no consent";
    if (this.#isDamaged) return "disabled";
    if (this.#optedOut.has(metric.name)) return "opted out";
    const today = dayOf(this.#settings.clock());
    return today > metric.expires ? "expired" : undefined;
  }

  /**
   * @param {Metric} metric
   * @param {unknown} value
   * @returns {Promise<Outcome>}
   */
  async #recorded(metric, value) {
    const refusal = this.#refusal(metric);
    if (refusal) return refusal;
    const now = this.#settings.clock();
    const read = readValue(metric.params, value); // before the secret is touched
    const { secret } = this.#identity ?? (await this.#begin());
    const seen = /** @type {Device} */ (this.#seen); // there is one where there is an identity
    if (!this.#speaks(seen, metric, now)) return "silent";
    const day = dayOf(now);
    const epoch = epochAt(metric.epoch, day);
    const base = scopeName(metric.name, epoch, metric.params);
    const { sample } = metric;
    if (sample < ONE && !isBegun(seen, metric.name, day)) {
      if ((await scopeCoin(secret, "sample", base)) >= sample) return "silent";
    }
    const entering = await this.#entering(secret, seen, metric, read, { epoch, base, day });
    if (!entering) return "silent";
    for (;;) {
      const kept = await this.#update(["device", "spool"], (all) =>
        this.#keep(all, metric, entering, now, fits(metric.params, read)),
      );
      if (kept) return kept;
      entering.permanent = await entering.respond();
    }
  }

  /**
   * Return a value as it enters its scope, undefined before the day that is drawn in an epoch. A
   * permanent response takes time: none is computed that the device, as it was last seen, needs not.
   * @param {CryptoKey} secret
   * @param {Device} seen
   * @param {Metric} metric
   * @param {unknown} value
   * @param {{ epoch: string, base: string, day: string }} at
   * @returns {Promise<(Entering & { respond: () => Promise<string> }) | undefined>}
   */
  async #entering(secret, seen, metric, value, { epoch, base, day }) {
    const params = await partParams(secret, seen, metric, epoch, base);
    const scope = scopeName(metric.name, epoch, params);
    const cohort = await cohortOf(secret, scope, params);
    const bits = await encode(params, value, cohort);
    const named = concat(utf8(`rappor-client/1/pattern\0${scope}\0`), bits);
    const pattern = base64url(await expand(secret, named, PATTERN_BYTES));
    const respond = async () => base64url(await permanentOf(secret, scope, params, bits));
    const held = seen.held[`${metric.name} ${epoch}`]?.report;
    const isHeld = held?.pattern === pattern;
    const terms = termsOf(seen, metric, day);
    const known = inForce(seen, terms, { metric: metric.name, epoch });
    if (metric.interval === "epoch" && !known) {
      const until = (/** @type {string} */ last) =>
        Date.parse(last) / 1000 + DAY - Date.parse(terms.first) / 1000;
      const u = await scopeCoin(secret, "day", scope);
      if (until(day) * ONE <= until(terms.end) * u) return undefined;
    }
    const permanent = isHeld ? held.permanent : known ? undefined : await respond();
    return { metric: metric.name, params, epoch, cohort, pattern, permanent, respond };
  }

  /**
   * Latch, choose, charge and spool, all of it or nothing; null if the permanent response is
   * needed after all.
   * @param {Required<Documents>} documents
   * @param {Metric} metric
   * @param {Entering} entering
   * @param {number} now
   * @param {boolean} isFit
   * @returns {Outcome | null}
   */
  #keep({ device, spool }, metric, entering, now, isFit) {
    const { coins, limits } = this.#settings;
    const speaks = this.#speaks(device, metric, now);
    if (speaks) release(device, spool, now, coins);
    const terms = termsOf(device, metric, dayOf(now));
    const answered = speaks ? answer(device, terms, entering) : undefined;
    if (answered === null) return null;
    if (!isFit) count(device, "unfit");
    if (!answered) return "silent";
    const { scope, params } = answered;
    const report = draw(scope, params, coins);
    const { interval } = scope;
    if (interval === "none") settleReport(device, spool, answered, report);
    else if (!offer(device, terms, scope, report, now, coins)) return "closed";
    keepReserved(device, metric, yearOf(now));
    trim(device, spool, limits);
    if (scope.last !== entering.pattern) return "repeated";
    return interval === "none" ? "recorded" : "held";
  }

  /** @param {Required<import("./uploader.js").Hurry>} hurry */
  async #flushed(hurry) {
    /** @type {Step[]} */
    const steps = [];
    const { deadline, tried } = hurry;
    if (this.#consent && !this.#identity) await this.#begin();
    while (this.#consent && this.#uploader && !hurry.isOver) {
      const step = await this.#step(hurry);
      steps.push(step);
      if (step.id) tried.add(step.id);
      const waiting = await this.waiting();
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
    return this.#safely(step, { due: this.#settings.clock() + 3600, reason: "failed" });
  }

  /** @param {Required<Documents>} documents */
  #dropOptedOut({ device, spool, log }) {
    const { clock, limits } = this.#settings;
    const at = { now: clock(), limits, atHand: this.#atHand };
    dropMetrics(device, spool, log, this.#optedOut, at);
  }

  /** Send the upload at hand while the page ends. If no answer is seen, it is sent once more. */
  #leave() {
    const [upload, seen] = [this.#atHand, this.#seen];
    this.#atHand = undefined;
    if (!upload || !seen || this.#optedOut.has(upload.metric)) return;
    this.#safely(async () => this.#uploader?.leave(seen, upload), undefined);
  }

  /** Become the store's device, or a new one, once at a time. */
  #begin() {
    this.#beginning ??= this.#begun().finally(() => (this.#beginning = undefined));
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
    const year = yearOf(this.#settings.clock());
    const { identity, device, spool } = await this.#store.update(
      ALL,
      (all) => {
        if (!this.#consent) throw new Changed(); // it was withdrawn meanwhile
        if (!all.identity && !all.device?.mark) {
          Object.assign(all, { identity: fresh, device: newDevice(fresh.mark, all.device) });
        }
        if (!all.identity || !isSound(all)) throw new Damaged();
        const documents = whole(all);
        this.#dropOptedOut(documents);
        followClock(documents.device, year);
        return documents;
      },
      { strict: true },
    );
    this.#seen = device;
    this.#identity = { secret: await keyOf(identity.secret), mark: identity.mark };
    this.#disabled = undefined;
    const waiting = spool.reports.length + spool.uploads.length;
    if (waiting || nextEnd(device) < Infinity) this.#sender?.catchUp(waiting);
    const silent = [...silentMetrics(device, this.#registry, this.#limits(), year)];
    if (silent.length) this.#warn(`no room in the budget for ${silent}`);
    return this.#identity;
  }

  /**
   * Return whether a metric has room in the budget and is not stopped; values do not matter.
   * @param {Device} device
   * @param {Metric} metric
   * @param {number} now
   */
  #speaks(device, metric, now) {
    const silent = silentMetrics(device, this.#registry, this.#limits(), yearOf(now));
    return !silent.has(metric.name) && !silentUntil(device, metric.name, now);
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
        const upload = isPage && atHand(documents, this.#atHand, this.#settings.clock());
        return /** @type {const} */ ([result, documents.device, upload || undefined]);
      },
      { strict },
    );
    if (this.#identity) [this.#seen, this.#atHand] = [device, upload]; // no withdrawal meanwhile
    return result;
  }

  /**
   * Ask the store; answer with `otherwise` where there is nothing, or it cannot be read.
   * @template T
   * @param {(documents: Required<Documents>) => T} question
   * @param {T} otherwise
   * @returns {Promise<T>}
   */
  #look(question, otherwise) {
    return this.#safely(async () => {
      const all = await this.#store.read(ALL);
      return all.device ? question(whole(all)) : otherwise;
    }, otherwise);
  }

  /**
   * Run an action; whatever fails but the program itself is counted and answered.
   * @template T
   * @param {() => Promise<T>} action
   * @param {T} otherwise
   * @param {number} [seconds]
   * @returns {Promise<T>}
   */
  async #safely(action, otherwise, seconds = PATIENCE) {
    try {
      return await within(seconds, action());
    } catch (error) {
      if (error instanceof RapporError) throw error;
      if (error instanceof Changed) {
        this.#forget(); // another tab withdrew consent, or the person cleared the site's data
        return otherwise;
      }
      this.#failures += 1;
      this.#isDamaged ||= error instanceof Damaged;
      const name = error instanceof Error ? error.name : "error";
      if (this.#identity) this.#warn(`telemetry failed: ${name}`);
      else this.#disable(this.#isDamaged ? "the device is damaged" : `its store failed: ${name}`);
      return otherwise;
    }
  }

  /** @param {string} reason */
  #disable(reason) {
    this.#disabled = reason;
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
    this.#identity = this.#seen = this.#atHand = undefined;
    this.#stopSending();
  }

  #stopSending() {
    globalThis.removeEventListener?.("pagehide", this.#onPageHide);
    this.#sender?.stop();
    this.#uploader?.close();
  }
}

/**
 * Erase a store once no tab sends any more, and check that nothing remains.
 * @param {import("../index.js").Store} store
 * @param {import("../index.js").Clock} [clock]
 */
async function erased(store, clock) {
  const tabs = tabsOf(store.channel, () => {});
  const erase = () =>
    store.update(
      ALL,
      (all) => {
        if (all.device && !isSound({ device: all.device })) throw new Damaged();
        const device = remainder(all.device);
        Object.assign(all, { identity: undefined, spool: undefined, log: undefined, device });
      },
      { strict: true },
    );
  const lost = { ...newDevice(), lost: yearOf(bounded(clock)()) };
  tabs.tell();
  const eraseAnyhow = () => erase().catch(() => store.clear({ device: lost }));
  const erasing = async () => {
    const isQuiet = !(await leftIn(store)).length || (await tabs.whenQuiet(eraseAnyhow));
    return isQuiet ? [] : ["an upload under way"];
  };
  const underWay = await within(2 * PATIENCE, erasing()).catch(() => []); // what failed is left
  const left = [...(await leftIn(store)), ...underWay];
  tabs.close();
  return { done: !left.length, secretGone: !left.includes("identity"), left };
}

/**
 * Return the names of the documents that an erasure must not leave; all if none can be read.
 * @param {import("../index.js").Store} store
 * @returns {Promise<string[]>}
 */
async function leftIn(store) {
  try {
    const all = await within(PATIENCE / 2, store.read(ALL));
    return ALL.filter((name) => (name === "device" ? all.device?.mark : all[name]));
  } catch {
    return [...ALL];
  }
}

/**
 * Return documents with an empty one in the place of each that is absent.
 * @param {Documents} all
 * @returns {Required<Documents>}
 */
function whole(all) {
  all.spool ??= { reports: [], uploads: [] };
  all.log ??= [];
  return /** @type {Required<Documents>} */ (all);
}

/**
 * Return whether identity and device belong together and are of this version.
 * @param {Documents} all
 */
function isSound({ identity, device }) {
  return device?.v === VERSION && (!identity || identity.mark === device.mark);
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

/**
 * Return the parameters of the part that a device answers for.
 * @param {CryptoKey} secret
 * @param {Device} device
 * @param {Metric} metric
 * @param {string} epoch
 * @param {string} base
 */
async function partParams(secret, device, metric, epoch, base) {
  if (!metric.parts.length) return metric.params;
  const latched = latchedPart(device, metric, epoch);
  const part = latched ?? choosePart(metric.parts, await scopeCoin(secret, "part", base));
  return (part ?? metric).params;
}

/** @param {{ limits: import("../index.js").Limits, caps: { total: number, per: string } }} settings */
function check({ limits, caps }) {
  const isLimit = (/** @type {number} */ limit) => Number.isInteger(limit) && limit > 0;
  demand(Object.values(limits).every(isLimit), "limits must be integers of at least 1");
  const isCap = caps.total >= 0 && ["year", "life"].includes(caps.per);
  demand(isCap, "caps must be a total of at least 0, per year or life");
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
  const told = steps.reverse().find(({ reason }) => {
    if (!waiting) return reason === "refused";
    return reason && !DONE.includes(reason) && !DONE.includes(last.reason ?? "");
  });
  const { reason = waiting ? "timeout" : n ? "sent" : "nothing waiting", status, detail } = told ?? {};
  const retryAt = waiting && told ? last.due : undefined;
  return flushed(reason, { sent: n, waiting, status, detail, retryAt });
}
