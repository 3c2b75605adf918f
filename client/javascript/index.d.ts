import type { Documents } from "./documents.js";

/** Base of all errors that are raised on purpose. No message contains a recorded value. */
export class RapporError extends Error {}
/** A parameter or a setting is outside its range. */
export class ParamsError extends RapporError {}
/** A value is not of its metric's kind. */
export class ReportError extends RapporError {}
/** An entry of a registry is wrong, or a metric is unknown. */
export class MetricError extends RapporError {}

/** Seconds since 1970 (UTC). */
export type Clock = () => number;
/** Returns n uniform 32-bit integers. */
export type Coins = (n: number) => ArrayLike<number>;

export type Epoch = "life" | "year" | "quarter" | "month";
export type Interval = "day" | "week" | "epoch";

/** A parameter set in integer thresholds, as `rappor collects --json` writes it. */
export interface ParamsDocument {
  readonly v: number;
  readonly encoding: string;
  readonly k: number;
  readonly h: number;
  readonly m: number;
  readonly f: number;
  readonly f0?: number;
  readonly p: number;
  readonly q: number;
  readonly categories?: readonly string[];
  readonly normalize?: string;
  readonly part?: string;
  /** Interval and epoch of the metric, which the fingerprint contains. */
  readonly interval?: Interval;
  readonly epoch?: Epoch;
}

/** A checked parameter set. Probabilities are thresholds; `f` forces a bit to 1 and `f0` to 0. */
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
  readonly categories: readonly string[];
  readonly normalize: string;
  readonly part: string;
  /** Segment of the device, and the fingerprint without it. */
  readonly segment?: Readonly<Record<string, string>>;
  readonly plain?: string;
  readonly fingerprint: string;
  readonly permanentFingerprint: string;
}

/** A public property of devices and its listed values. All other values are sent as "other". */
export type Dimension = readonly [name: string, values: readonly string[]];

export interface MetricDocument {
  readonly name: string;
  readonly description: string;
  readonly owner: string;
  /** Last day of collection, as 2026-11-30. */
  readonly expires: string;
  readonly epoch: Epoch;
  readonly interval: Interval;
  /** Whether a recorded value must survive an end of the program at any time. */
  readonly durable?: boolean;
  /** Threshold of the share of devices that take part. */
  readonly sampling_rate: number;
  readonly params: ParamsDocument;
  readonly fingerprint: string;
  /** Parts with the thresholds of their shares. The last part has no threshold. */
  readonly parts: readonly {
    readonly name: string;
    readonly threshold?: number;
    readonly fingerprint: string;
  }[];
  readonly segments: readonly Dimension[];
  /** Privacy notice of the metric, in plain words. */
  readonly notice: string;
}

/** Output of `rappor collects --json`. */
export interface RegistryDocument {
  readonly v: number;
  /** Nats that a device may lose in a calendar year, as ECMAScript writes numbers. */
  readonly total: string;
  readonly metrics: readonly MetricDocument[];
  /** SHA-256 of the rest. */
  readonly seal: string;
}

export interface Metric extends Omit<MetricDocument, "params" | "parts"> {
  readonly params: Params;
  readonly parts: readonly {
    readonly name: string;
    readonly threshold?: number;
    readonly fingerprint: string;
    readonly params: Params;
  }[];
}

export interface Registry {
  readonly total: number;
  readonly metrics: ReadonlyMap<string, Metric>;
}

/** One report as it leaves the device. */
export interface Report {
  readonly metric: string;
  /** Fingerprint of its parameters. */
  readonly params: string;
  readonly cohort: number;
  /** In base64url, without padding. */
  readonly bits: string;
}

/** Reason why a value has no report. The first four are returned before the value is read. */
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
 * Outcome of `record()`.
 *
 * - "recorded": the value is in memory or in the store. One event of the interval is reported.
 * - "skipped": the metric has no report, whatever the value is.
 * - "failed": the store does not respond and memory is full; or, of a durable metric, the value is in memory
 *   but not stored, because there is no storage that can be written at once.
 */
export interface Outcome {
  readonly outcome: "recorded" | "skipped" | "failed";
  /** Empty for a recorded value. */
  readonly reason: "" | SkipReason | "memory is full" | "not stored";
}

/** Reason why a flush ended. After the first three nothing is queued. */
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

export interface FlushResult {
  /** Whether nothing is queued any more. */
  readonly done: boolean;
  readonly reason: FlushReason;
  readonly sent: number;
  readonly queued: number;
  /** HTTP status or reason of the collector, or the name of the failure. */
  readonly detail?: string;
  /** Time of the next attempt, in seconds since 1970. */
  readonly retryAt?: number;
}

export interface MetricPrivacySpent {
  readonly nats: number;
  /** Number of scopes with a report. Each has one permanent response. */
  readonly scopes: number;
  readonly reports: number;
}

/** Privacy loss of a device, in nats. */
export interface PrivacySpent {
  readonly nats: number;
  readonly metrics: Record<string, MetricPrivacySpent>;
  /** By calendar year. */
  readonly reserved: Record<number, number>;
}

/** One upload of one report: its day (UTC) and the very text that left the device. */
export interface SentUpload {
  readonly day: string;
  readonly id: string;
  readonly body: string;
  readonly metric: string;
  readonly attempts: number;
  readonly status: string;
}

/** Facts that were verified after an erasure. */
export interface Withdrawal {
  readonly done: boolean;
  readonly secretGone: boolean;
  readonly left: readonly string[];
}

export interface TransportResponse {
  readonly status: number;
  readonly body: string;
  /** Seconds. */
  readonly retryAfter?: number;
}

/** A way to a collector. An aborted signal ends the exchange. */
export interface Transport {
  send(body: string, options: { signal?: AbortSignal }): Promise<TransportResponse>;
}

/** Limits of the stored reports and uploads. */
export interface QueueLimits {
  /**
   * Largest number of queued reports, beside at most 20 uploads that were tried and the uploads of stopped
   * metrics. The oldest reports are dropped first, and counted.
   */
  readonly reports: number;
  /** Largest size of the queued reports in bytes, about. */
  readonly bytes: number;
  /** Largest number of remembered uploads. */
  readonly log: number;
}

/** A storage that can be written synchronously, as `localStorage`. */
export interface PageStorage {
  readonly length: number;
  key(index: number): string | null;
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}

/** Storage of a device's documents; see indexedDbStore, memoryStore, and fileStore for Node. */
export interface Store {
  /** Whether the store can hold a CryptoKey. */
  readonly holdsKeys: boolean;
  /** Name that all tabs with this store share; undefined without tabs. */
  readonly channel: string | undefined;
  /** Storage of events that a page could not store before it ended. */
  readonly pageStorage?: PageStorage;
  /** Read documents of one point in time. */
  read(names: (keyof Documents)[]): Promise<Documents>;
  /** Change documents by `work`, all of them or none, and exclude every other change meanwhile. */
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

export interface OpenOptions {
  /** Registry, as `rappor collects --json` writes it. It is delivered with the page. */
  registry: RegistryDocument;
  /** Consent of the person. `false` computes and sends nothing, and erases the device. */
  consent: boolean;
  /** An https address, or a path of the page's own origin. Without it nothing is sent. */
  collector?: string;
  /** Upload key, if the collector requires one. */
  uploadKey?: string;
  /** A transport of the program's own. */
  transport?: Transport;
  /** Names of the metrics that this person refuses; ParamsError for a text. Unknown names are logged. */
  optedOut?: Iterable<string>;
  /** A budget below the registry's total, in nats, for each year or for all years together. */
  budgetCap?: { total?: number; per?: "year" | "life" };
  queueLimits?: Partial<QueueLimits>;
  /** Public properties of this device by name, sent without noise where the registry lists them. */
  segment?: Record<string, string>;
  /**
   * Functions of the program instead of the tables of hosts and public suffixes, which a page loads if a
   * metric needs them. They return the host or domain of a text, as candidates are written.
   */
  normalizers?: { host?: (text: string) => string; domain?: (text: string) => string };
  /** Longest random delay before an upload, in seconds. The default is 60. */
  maxDelay?: number;
  /** Whether reports are sent in the background. Otherwise only `flush` sends. The default is true. */
  background?: boolean;
  /** Name of the device's database in this origin. The default is "telemetry". */
  name?: string;
  /** Another store than a database of this origin. */
  store?: Store;
  /** Clock of tests. */
  clock?: Clock;
  /** Coins of tests. */
  coins?: Coins;
}

/** The telemetry of one device in one store. Tabs share the store. */
export class Client {
  /**
   * Open a device within two seconds. It is created at its first use. ParamsError or MetricError for
   * mistakes of the program; every other failure disables the client: storage that is blocked or does not
   * respond, and a page without a secure context, which has no WebCrypto.
   */
  static open(options: OpenOptions): Promise<Client>;
  /** Reason why nothing is recorded, undefined if the client is enabled. A store that responds again ends it. */
  readonly disabledReason: string | undefined;
  /** Whether there is consent, and nothing disables the client. */
  readonly isEnabled: boolean;
  /** The metrics by name, with their texts for people. */
  readonly metrics: ReadonlyMap<string, Metric>;
  /**
   * Record a value. The call returns at once and the event is stored soon after; a page that ends defers it
   * to the next page. MetricError for an unknown metric, ReportError for a value of the wrong kind.
   */
  record(name: string, value: unknown): Outcome;
  /** Store the events in memory and send queued reports within `timeout` seconds. The default is 10. */
  flush(options?: { timeout?: number }): Promise<FlushResult>;
  /** Return the number of finished reports without a response of the collector. */
  queuedCount(): Promise<number>;
  /** Return the privacy loss so far. */
  privacySpent(): Promise<PrivacySpent>;
  /** Return the uploads that have left the device, or may have left it with a page that ended, the oldest first. */
  sentUploads(): Promise<SentUpload[]>;
  /** Return counters of recorded, accepted, dropped and refused reports. */
  eventCounts(): Promise<Record<string, number>>;
  /** Refuse a metric from now on, in all tabs, and drop its reports. The page must store the choice. */
  optOut(name: string): Promise<void>;
  /** Withdraw consent: erase everything but the reserved nats, and return within five seconds what remains. */
  withdraw(): Promise<Withdrawal>;
  /** Store the events in memory and stop the background sender. Queued reports stay in the store. */
  close(): Promise<void>;
}

/** Return a store in a database of this origin. */
export function indexedDbStore(name: string): Store;
