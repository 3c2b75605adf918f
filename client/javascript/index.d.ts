// Public names of the package `rappor-client`.
//
// In the examples `registry` is the document that `rappor collects --json` writes, here of a metric `theme` with the
// categories "light" and "dark" and one report a day. A comment after an expression is its value. Tests run all examples.

import type { Documents } from "./documents.js";

/**
 * Base of all errors that the client raises on purpose. Each error is a mistake of the program. Failures of storage and
 * network never raise. No message contains a recorded value.
 *
 * @example
 * import { RapporError } from "rappor-client";
 * try {
 *   client.record("theme", 7);
 * } catch (error) {
 *   if (!(error instanceof RapporError)) throw error;
 * }
 */
export class RapporError extends Error {}
/**
 * An option or a parameter is outside its range.
 *
 * @example
 * await client.flush({ timeout: -1 }).catch((error) => error.name); // "ParamsError"
 */
export class ParamsError extends RapporError {}
/**
 * A recorded value is of the wrong kind for its metric. The message contains the type of the value and not the value.
 *
 * @example
 * try { client.record("theme", 7); } catch (error) { message = error.message; }
 * message; // "a value must be a text, got number"
 */
export class ReportError extends RapporError {}
/**
 * An entry of a registry is wrong, a registry was edited by hand, or a metric is unknown.
 *
 * @example
 * try { client.record("thme", "dark"); } catch (error) { message = error.message; }
 * message; // "unknown metric; expected one of page,theme"
 */
export class MetricError extends RapporError {}

/** Returns the time in seconds since 1970 (UTC). */
export type Clock = () => number;
/** Returns n coins: independent, uniform integers in [0, 2^32). */
export type Coins = (n: number) => ArrayLike<number>;

/** Period with one cohort and one permanent response of a device. */
export type Epoch = "life" | "year" | "quarter" | "month";
/** Period with at most one report of a device. */
export type Interval = "day" | "week" | "epoch";

/**
 * A parameter set as the registry contains it. A probability is an integer threshold, of which 2^32 means probability
 * one.
 */
export interface ParamsDocument {
  /** Version of the protocol. */
  readonly v: number;
  /** "bloom", "onehot", "boolean", "buckets" or "set". */
  readonly encoding: string;
  /** Number of bits of a report. */
  readonly k: number;
  /** Number of hash functions of a string. Absent, with f, p and q, if reports name one bucket. */
  readonly h?: number;
  /** Number of cohorts. */
  readonly m: number;
  /** Threshold with which the permanent response forces a bit to 1. */
  readonly f?: number;
  /** Threshold with which the permanent response forces a bit to 0. The default is `f`. */
  readonly f0?: number;
  /** Threshold with which a permanent 0 is reported as 1. */
  readonly p?: number;
  /** Threshold with which a permanent 1 is reported as 1. */
  readonly q?: number;
  /** Buckets that a device owns after padding or cutting, if reports name one bucket. */
  readonly items?: number;
  /** Threshold with which a report is drawn from the own buckets, if reports name one bucket. */
  readonly keep?: number;
  /** Categories, or the edges of buckets as decimal numbers. */
  readonly categories?: readonly string[];
  /**
   * Names of the fields, for values of several fields. The categories are then all combinations, whose texts are joined by
   * U+001F.
   */
  readonly fields?: readonly string[];
  /** Name of the normalizer. The default is "none". With fields, a name for each field, separated by commas. */
  readonly normalize?: string;
  /** Part of a string that is reported, such as "prefix:3". The default is the whole string. */
  readonly part?: string;
  /** Interval and epoch of the metric, which the fingerprint contains. */
  readonly interval?: Interval;
  readonly epoch?: Epoch;
}

/** A parameter set that the client has read and checked. All defaults are filled in. */
export interface Params {
  readonly encoding: string;
  readonly k: number;
  readonly h: number;
  readonly m: number;
  readonly f: number;
  readonly f0: number;
  readonly interval?: Interval;
  readonly epoch?: Epoch;
  readonly p: number;
  readonly q: number;
  /** Own buckets of a device, if reports name one bucket. */
  readonly items?: number;
  /** Threshold with which a report is drawn from the own buckets; absent if each bit has noise of its own. */
  readonly keep?: number;
  readonly categories: readonly string[];
  readonly fields?: readonly string[];
  readonly normalize: string;
  readonly part: string;
  /** Segment of the device by dimension, for a metric with dimensions. */
  readonly segment?: Readonly<Record<string, string>>;
  /** Fingerprint of the set without the segment. */
  readonly plain?: string;
  /** 16 hex digits that name the set in a report. */
  readonly fingerprint: string;
  /** 64 hex digits of the set without p, q, segment, interval and epoch. */
  readonly permanentFingerprint: string;
}

/** A public property of devices, and its listed values. All other values are sent as "other". */
export type Dimension = readonly [name: string, values: readonly string[]];

/** Entry of a metric in the registry. */
export interface MetricDocument {
  readonly name: string;
  readonly description: string;
  readonly owner: string;
  /** Last day of collection, as 2026-11-30. */
  readonly expires: string;
  readonly epoch: Epoch;
  readonly interval: Interval;
  /** Whether a recorded value must survive an end of the program at any time. The default is false. */
  readonly durable?: boolean;
  /** Threshold of the share of devices that take part: 2^32 means all. */
  readonly sampling_rate: number;
  readonly params: ParamsDocument;
  /** Fingerprint of `params`. */
  readonly fingerprint: string;
  /** Parts with the thresholds of their shares. The last part has no threshold. Empty for a metric without parts. */
  readonly parts: readonly {
    readonly name: string;
    readonly threshold?: number;
    readonly fingerprint: string;
  }[];
  /** Dimensions of the segments, sorted by name. */
  readonly segments: readonly Dimension[];
  /** Privacy notice of the metric, for the people concerned. */
  readonly notice: string;
}

/** Output of `rappor collects --json`. */
export interface RegistryDocument {
  /** Version of the document. */
  readonly v: number;
  /** Largest privacy loss of a device in a calendar year, in nats, as ECMAScript writes numbers. */
  readonly total: string;
  readonly metrics: readonly MetricDocument[];
  /** SHA-256 of the document without this key, in hex. */
  readonly seal: string;
}

/** A metric of a registry that the client has read. */
export interface Metric extends Omit<MetricDocument, "params" | "parts"> {
  readonly params: Params;
  readonly parts: readonly {
    readonly name: string;
    readonly threshold?: number;
    readonly fingerprint: string;
    readonly params: Params;
  }[];
}

/** A registry that the client has read. */
export interface Registry {
  /** Largest privacy loss of a device in a calendar year, in nats. */
  readonly total: number;
  readonly metrics: ReadonlyMap<string, Metric>;
}

/** A report as it leaves the device. */
export interface Report {
  readonly metric: string;
  /** Fingerprint of its parameters. */
  readonly params: string;
  readonly cohort: number;
  /** Noisy bits in base64url, without padding. */
  readonly bits: string;
}

/**
 * Reason why a value is not reported.
 *
 * - "no consent": the person has not consented, or has withdrawn consent.
 * - "disabled": `disabledReason` says why.
 * - "opted out": the person refuses this metric.
 * - "expired": the last day of collection is over.
 * - "stopped": the collector has asked all devices not to report the metric for some days.
 * - "budget": the metric has no room in the budget of the year.
 * - "sample": the device does not belong to the sample of the epoch.
 * - "day": the report day of the epoch, which the secret draws, has not come.
 * - "last day": a report of the epoch's last day could not leave within the epoch.
 * - "interval": the interval has had its report.
 *
 * The first four are returned before the value is read, so a value of the wrong kind does not raise.
 */
export type SkipReason =
  | "no consent"
  | "disabled"
  | "opted out"
  | "expired"
  | "stopped"
  | "budget"
  | "sample"
  | "day"
  | "last day"
  | "interval";

/**
 * Outcome of `record`.
 *
 * - "recorded": the value is in memory or in the store. One event of the interval is reported.
 * - "skipped": no value of the metric is reported now; `reason` says why.
 * - "failed": the value is lost, because the store does not respond and memory is full; or the value of a durable metric
 *   is in memory but not stored, because there is no storage that can be written synchronously.
 */
export interface Outcome {
  readonly outcome: "recorded" | "skipped" | "failed";
  /** Empty for a recorded value. */
  readonly reason: "" | SkipReason | "memory is full" | "not stored";
}

/**
 * Reason why a flush ended. After the first three nothing is queued.
 *
 * - "nothing queued": no report was ready to leave. The report of an open interval is not queued.
 * - "sent": the collector has accepted all reports.
 * - "refused": the collector has refused a report for good; `detail` has its reason.
 * - "unreachable": the collector did not respond; `detail` has the name of the failure.
 * - "collector error": the collector responded with an error; `detail` has the HTTP status.
 * - "asked to wait": the collector has asked for a wait, or has stopped all queued metrics.
 * - "busy": another tab is sending.
 * - "timeout": the time was over, or no other report may leave before it is over.
 * - "no collector": reports are queued, and the client has no collector.
 * - "no consent": reports are queued, and there is no consent.
 * - "failed": the store failed or did not respond, or events could not be stored.
 */
export type FlushReason =
  | "nothing queued"
  | "sent"
  | "refused"
  | "unreachable"
  | "collector error"
  | "asked to wait"
  | "busy"
  | "timeout"
  | "no collector"
  | "no consent"
  | "failed";

/** Result of a flush. */
export interface FlushResult {
  /** Whether nothing is queued any more. */
  readonly done: boolean;
  readonly reason: FlushReason;
  /** Number of reports that the collector has accepted in this flush. */
  readonly sent: number;
  /** Number of reports that are still queued. */
  readonly queued: number;
  /** HTTP status or reason of the collector, or the name of the failure. */
  readonly detail?: string;
  /** Time of the next attempt, in seconds since 1970. */
  readonly retryAt?: number;
}

/** Privacy loss of one metric. */
export interface MetricPrivacySpent {
  /** Sum of the losses of the scopes, in nats. */
  readonly nats: number;
  /** Number of scopes with a report. Each has one permanent response. */
  readonly scopes: number;
  /** Number of reports, with the reports that are still queued. */
  readonly reports: number;
}

/** Privacy loss of a device. */
export interface PrivacySpent {
  /**
   * Sum of the losses of all metrics, in nats; infinity if the loss is unknown, because the state of the device was lost
   * once or cannot be read.
   */
  readonly nats: number;
  /** Losses by metric. */
  readonly metrics: Record<string, MetricPrivacySpent>;
  /** Nats that metrics have reserved, by calendar year. */
  readonly reserved: Record<number, number>;
}

/** One upload of one report: its day (UTC) and the very text that left the device. */
export interface SentUpload {
  readonly day: string;
  readonly id: string;
  readonly body: string;
  readonly metric: string;
  readonly attempts: number;
  /** "accepted", "refused: REASON", "given_up", "opted_out", or "unanswered" for an upload without a response. */
  readonly status: string;
}

/** Facts that were verified after an erasure. */
export interface Withdrawal {
  /** Whether nothing is left. */
  readonly done: boolean;
  /** Whether the secret is gone. Another report of the device cannot be computed without the secret. */
  readonly secretGone: boolean;
  /** Names of the documents and of the deferred texts that could not be erased, and "an upload under way". */
  readonly left: readonly string[];
}

/** Response of a collector, as a transport returns it. */
export interface TransportResponse {
  /** HTTP status. */
  readonly status: number;
  readonly body: string;
  /** Seconds for which the collector wants no further request (the header Retry-After). */
  readonly retryAfter?: number;
}

/** Sends uploads to a collector, in place of requests by `fetch`. If `send` rejects, the upload is sent again later. */
export interface Transport {
  /**
   * Send the body of an upload.
   *
   * @param body JSON text for POST /v1/reports
   * @param options.signal aborts the request
   */
  send(body: string, options: { signal?: AbortSignal }): Promise<TransportResponse>;
}

/** Limits of the queue and of the log. Each is an integer of at least 1. */
export interface QueueLimits {
  /**
   * Largest number of queued reports, beside at most 20 uploads that were tried and the uploads of stopped metrics. The
   * oldest reports are dropped first, and counted. The default is 200.
   */
  readonly reports: number;
  /** Largest size of the queued reports in bytes, approximately. The default is 200,000. */
  readonly bytes: number;
  /** Largest number of remembered uploads. The default is 200. */
  readonly log: number;
}

/** A storage that can be written synchronously, such as `localStorage`. */
export interface PageStorage {
  readonly length: number;
  key(index: number): string | null;
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}

/** Storage of a device's documents. See `indexedDbStore`, `memoryStore`, and `fileStore` for Node. */
export interface Store {
  /** Whether the store can contain a CryptoKey. Otherwise the secret is stored as text. */
  readonly holdsKeys: boolean;
  /** Name that all tabs with this store share; undefined without tabs. */
  readonly channel: string | undefined;
  /** Storage of events that a page could not store before it ended. */
  readonly pageStorage?: PageStorage;
  /** Read several documents, all as one transaction has left them. */
  read(names: (keyof Documents)[]): Promise<Documents>;
  /**
   * Change documents in one transaction: all of them or none, without another change meanwhile.
   *
   * @param names documents that `work` gets, and that are stored afterwards
   * @param work changes the documents, synchronously; if it raises, nothing changes
   * @param options.strict whether to wait until the change is on the disk
   * @returns the result of `work`
   */
  update<T>(
    names: (keyof Documents)[],
    work: (documents: Documents) => T,
    options?: { strict?: boolean },
  ): Promise<T>;
  /** Replace all documents, which may be damaged. */
  clear(documents: Documents): Promise<void>;
  close(): Promise<void>;
}

export type { Documents };

/** Options of `Client.open`. Only `registry` and `consent` are required. */
export interface OpenOptions {
  /** Registry, as `rappor collects --json` writes it. It is delivered with the page, and no collector can change it. */
  registry: RegistryDocument;
  /** Consent of the person. `false` computes and sends nothing, and erases the device. */
  consent: boolean;
  /** An https address, or a path of the page's own origin such as "/telemetry". Without it nothing is sent. */
  collector?: string;
  /** Upload key, if the collector requires one. */
  uploadKey?: string;
  /** A transport of the program, in place of `collector`. */
  transport?: Transport;
  /** Names of the metrics that this person refuses. Unknown names are logged. */
  optedOut?: Iterable<string>;
  /**
   * A budget below the registry's total, in nats: for each calendar year (the default), or for all years together.
   * Metrics without room in it are skipped.
   */
  budgetCap?: { total?: number; per?: "year" | "life" };
  /** Limits of the queue and of the log. */
  queueLimits?: Partial<QueueLimits>;
  /** Public properties of this device by name, sent without noise by metrics whose entry lists them. */
  segment?: Record<string, string>;
  /**
   * Functions of the program in place of the normalizers `host` and `domain` and their tables, which a page loads if a
   * metric needs them. Each function returns the host or the domain of a text, spelled as in the list of candidates. The
   * functions apply to all clients of the page.
   */
  normalizers?: { host?: (text: string) => string; domain?: (text: string) => string };
  /** Longest random delay before an upload, in seconds. The default is 60. */
  maxDelay?: number;
  /** Whether reports are sent in the background. Otherwise only `flush` sends. The default is true. */
  background?: boolean;
  /** Name of the device's database in this origin. The default is "telemetry". */
  name?: string;
  /** A store in place of the database of this origin. */
  store?: Store;
  /** Clock, for tests. */
  clock?: Clock;
  /** Coins, for tests. */
  coins?: Coins;
}

/** The telemetry of one device in one store. All tabs with the same store are one device. */
export class Client {
  /**
   * Open the device of a store, within two seconds. The device is created at its first use.
   *
   * A failure of the environment does not raise but disables the client: storage that is blocked or does not respond, a
   * damaged store, or a page without https, which has no WebCrypto.
   *
   * @throws {ParamsError} an option is wrong
   * @throws {MetricError} the registry is wrong, or was edited by hand
   *
   * @example
   * import { Client } from "rappor-client";
   * import { memoryStore } from "rappor-client/testing";
   * const client = await Client.open({ registry, consent: true, store: memoryStore() });
   * client.isEnabled; // true
   */
  static open(options: OpenOptions): Promise<Client>;
  /**
   * Reason why the client is disabled and records nothing; undefined if it is not disabled. The client is enabled again
   * when its store responds.
   */
  readonly disabledReason: string | undefined;
  /** Whether there is consent, and nothing disables the client. */
  readonly isEnabled: boolean;
  /**
   * Metrics by name, with their texts for people.
   *
   * @example
   * [...client.metrics.keys()]; // ["page","theme"]
   */
  readonly metrics: ReadonlyMap<string, Metric>;
  /**
   * Record a value. The call waits for nothing; the event is stored soon after, and a page that ends first defers it to
   * the next page. Nothing is sent before the interval has ended.
   *
   * @param name name of the metric
   * @param value a string for strings and categories, true or false, a number or bigint for buckets, an array or a Set of
   *   strings for sets, or an object with a string for each field
   * @returns whether the value was recorded, skipped or lost, and why
   * @throws {MetricError} the metric is unknown
   * @throws {ReportError} the value is of the wrong kind
   *
   * @example
   * client.record("theme", "dark"); // {"outcome":"recorded","reason":""}
   */
  record(name: string, value: unknown): Outcome;
  /**
   * Store the events in memory, and send queued reports until none is left, the time is over, or no other report may leave
   * in time. At most one report of a metric leaves in an interval.
   *
   * @param options.timeout seconds; the default is 10, and the call returns at most half a second later
   * @throws {ParamsError} the timeout is negative or no number
   *
   * @example
   * let day = 18;
   * const client = await Client.open({
   *   registry,
   *   consent: true,
   *   store: memoryStore(),
   *   transport: { send: async () => ({ status: 200, body: '{"reports": [{"status": "accepted"}]}' }) },
   *   background: false,
   *   clock: () => Date.UTC(2026, 10, day, 12) / 1000,
   * });
   * client.record("theme", "dark");
   * (await client.flush()).reason; // "nothing queued"
   * day += 1;
   * const { done, reason, sent } = await client.flush();
   * [done, reason, sent]; // [true,"sent",1]
   */
  flush(options?: { timeout?: number }): Promise<FlushResult>;
  /**
   * Return the number of queued reports: finished reports without a response of the collector. The pending report of an
   * open interval does not count. The result is 0 if the store cannot be read.
   *
   * @example
   * await client.queuedCount(); // 0
   */
  queuedCount(): Promise<number>;
  /**
   * Return the number of pending reports: recorded reports that are not queued yet. Until the interval is over, a later
   * event may replace such a report. After the interval, the next stored event or attempt to send queues the report.
   *
   * @example
   * client.record("theme", "dark");
   * await client.pendingCount(); // 1
   */
  pendingCount(): Promise<number>;
  /**
   * Return the privacy loss of the device so far. It is infinite if the store cannot be read: the loss is unknown then.
   *
   * @example
   * client.record("theme", "dark");
   * await client.privacySpent().then(({ nats }) => nats); // 0
   */
  privacySpent(): Promise<PrivacySpent>;
  /**
   * Return the uploads that have left the device, or may have left it with a page that ended, the oldest first.
   *
   * @example
   * await client.sentUploads(); // []
   */
  sentUploads(): Promise<SentUpload[]>;
  /**
   * Return event counters by name: `recorded` (reports that left their interval), `accepted`, `refused`, `given_up`,
   * `opted_out`, `dropped_full` (lost because memory or the queue was full), `unfit` (values in no category or bucket) and
   * `failures`. A counter of 0 is left out.
   *
   * @example
   * client.record("theme", "sepia");
   * await client.eventCounts(); // {"unfit":1}
   */
  eventCounts(): Promise<Record<string, number>>;
  /**
   * Refuse a metric from now on, in all tabs, and drop its queued reports. The page must store the choice and pass it to
   * `Client.open` as `optedOut`.
   *
   * @throws {MetricError} the metric is unknown
   *
   * @example
   * await client.optOut("theme");
   * client.record("theme", "dark").reason; // "opted out"
   */
  optOut(name: string): Promise<void>;
  /**
   * Withdraw consent: erase everything but the reserved nats, in all tabs, and return within five seconds what remains.
   *
   * @example
   * await client.withdraw(); // {"done":true,"secretGone":true,"left":[]}
   */
  withdraw(): Promise<Withdrawal>;
  /**
   * Store the events in memory and stop the background sender. Queued reports stay in the store for the next client.
   *
   * @example
   * await client.close();
   */
  close(): Promise<void>;
}

/**
 * Return a store in a database of this origin. `Client.open` uses such a store by default, with the option `name`.
 *
 * @param name stores with different names are different devices
 *
 * @example
 * import { indexedDbStore } from "rappor-client";
 * indexedDbStore("editor").channel; // "editor"
 */
export function indexedDbStore(name: string): Store;
