import type { Documents } from "./documents.js";

/** Everything that is raised on purpose; no message holds a recorded value. */
export class RapporError extends Error {}
/** A parameter or a setting is outside its range. */
export class ParamsError extends RapporError {}
/** A value is not of its metric's kind. */
export class ReportError extends RapporError {}
/** A registry's entry is wrong, or a metric is not in it. */
export class MetricError extends RapporError {}

/** Seconds since 1970 (UTC). */
export type Clock = () => number;
/** n -> n uniform 32-bit integers. */
export type Coins = (n: number) => ArrayLike<number>;

export type Epoch = "life" | "year" | "quarter" | "month";
export type Interval = "none" | "hour" | "day" | "week" | "epoch";

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
  readonly other?: boolean;
}

/**
 * A parameter set that was checked; probabilities are thresholds: f forces a bit to 1, f0 to 0.
 */
export interface Params {
  readonly encoding: string;
  readonly k: number;
  readonly h: number;
  readonly m: number;
  readonly f: number;
  readonly f0: number;
  readonly p: number;
  readonly q: number;
  readonly categories: readonly string[];
  readonly normalize: string;
  readonly part: string;
  readonly other?: boolean;
  /** What is told in the clear, and the fingerprint without it. */
  readonly segment?: Readonly<Record<string, string>>;
  readonly plain?: string;
  readonly fingerprint: string;
  readonly permanentFingerprint: string;
}

/** A public property of devices, and the values that may be told; all others are told as "other". */
export type Dimension = readonly [name: string, values: readonly string[]];

export interface MetricDocument {
  readonly name: string;
  readonly description: string;
  readonly owner: string;
  /** The last day of collection, as 2026-11-30. */
  readonly expires: string;
  readonly epoch: Epoch;
  readonly interval: Interval;
  readonly patterns: number;
  /** The threshold of the share of devices that take part. */
  readonly sample: number;
  readonly params: ParamsDocument;
  readonly fingerprint: string;
  /** A part's threshold is that of its share; the last one has none. */
  readonly parts: readonly {
    readonly name: string;
    readonly threshold?: number;
    readonly fingerprint: string;
  }[];
  readonly segments: readonly Dimension[];
  /** What the metric collects, in plain words. */
  readonly notice: string;
}

/** What `rappor collects --json` writes. */
export interface RegistryDocument {
  readonly v: number;
  /** The nats that a device may lose in a calendar year, as ECMAScript writes numbers. */
  readonly total: string;
  readonly metrics: readonly MetricDocument[];
  /** The SHA-256 of the rest. */
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
  /** The fingerprint of its parameters. */
  readonly params: string;
  readonly cohort: number;
  /** In base64url, without padding. */
  readonly bits: string;
}

/** Why a value has no report; the first five are said before the value is looked at. */
export type SilentReason =
  | "no consent"
  | "disabled"
  | "opted out"
  | "expired"
  | "stopped"
  | "budget"
  | "sample"
  | "day"
  | "interval";

/**
 * What became of a value: "kept" in memory, or in the store, from where it leaves; "silent", because
 * nothing that its value decides; or "failed", because nothing can be stored and memory is full.
 */
export interface Outcome {
  readonly outcome: "kept" | "silent" | "failed";
  /** Empty for what is kept. */
  readonly reason: "" | SilentReason | "memory is full";
}

/** Why a flush ended; the first three leave nothing waiting. */
export type FlushReason =
  | "nothing waiting"
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

export interface Flushed {
  /** Whether nothing waits any more. */
  readonly done: boolean;
  readonly reason: FlushReason;
  readonly sent: number;
  readonly waiting: number;
  /** The collector's HTTP status or reason, or the name of what failed. */
  readonly detail?: string;
  /** The moment of the next attempt, in seconds since 1970. */
  readonly retryAt?: number;
}

export interface MetricSpent {
  readonly nats: number;
  /** Distinct permanent responses. */
  readonly patterns: number;
  readonly reports: number;
}

/** What a device has spent, in nats. */
export interface Spent {
  readonly nats: number;
  readonly metrics: Record<string, MetricSpent>;
  /** By calendar year. */
  readonly reserved: Record<number, number>;
}

/** One upload of one report: its day (UTC) and the very text that left the device. */
export interface Sent {
  readonly day: string;
  readonly id: string;
  readonly body: string;
  readonly metric: string;
  readonly attempts: number;
  readonly status: string;
}

/** What was verified after an erasure. */
export interface Withdrawal {
  readonly done: boolean;
  readonly secretGone: boolean;
  readonly left: readonly string[];
}

export interface Answer {
  readonly status: number;
  readonly body: string;
  /** Seconds. */
  readonly retryAfter?: number;
}

/** A way to a collector; an aborted signal ends the exchange. */
export interface Transport {
  send(body: string, options: { signal?: AbortSignal }): Promise<Answer>;
}

/** How much the device keeps. */
export interface Limits {
  /**
   * Reports that wait, besides at most 20 uploads that were tried and those of stopped metrics; the
   * oldest go first, and are counted.
   */
  readonly reports: number;
  /** Bytes of them, about. */
  readonly bytes: number;
  /** Uploads that are remembered for the person to see. */
  readonly log: number;
}

/** What a page can write at once, as `localStorage`. */
export interface Shelf {
  readonly length: number;
  key(index: number): string | null;
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}

/** Where a device's documents are; see indexedDbStore, memoryStore, and fileStore for Node. */
export interface Store {
  /** Whether it can hold a CryptoKey. */
  readonly holdsKeys: boolean;
  /** What tabs that share the store have in common; undefined without tabs. */
  readonly channel: string | undefined;
  /** Where pages that end leave to the next one what is not stored yet. */
  readonly shelf?: Shelf;
  /** Return documents as they are at one moment. */
  read(names: (keyof Documents)[]): Promise<Documents>;
  /** Let `work` change documents, all of it or nothing, and nobody else at the same time. */
  update<T>(
    names: (keyof Documents)[],
    work: (documents: Documents) => T,
    options?: { strict?: boolean },
  ): Promise<T>;
  /** Put these in the place of all documents, which may be damaged. */
  clear(documents: Documents): Promise<void>;
  close(): Promise<void>;
}

export type { Documents };

export interface OpenOptions {
  /** What the page collects, as `rappor collects --json` writes it. It ships with the page. */
  registry: RegistryDocument;
  /** The person's answer. `false` computes and sends nothing, and erases what there is. */
  consent: boolean;
  /** An https address, or a path of the page's own origin; without it reports wait. */
  collector?: string;
  /** For sending, if the collector wants one. */
  key?: string;
  /**
   * A key of the collector's debug door, while a page is built: at each `record` an example value, never
   * the recorded one, goes there at once under a secret that is thrown away. It needs `collector`.
   */
  debug?: string;
  /** A way to the collector of the program's own. */
  transport?: Transport;
  /** The names of the metrics that this person refuses; ParamsError for one text. */
  optedOut?: Iterable<string>;
  /** A lower limit than the registry's total, in nats, for each year or for all together. */
  caps?: { total?: number; per?: "year" | "life" };
  limits?: Partial<Limits>;
  /** Public properties of this device by name, sent in the clear where the registry lists them. */
  segment?: Record<string, string>;
  /**
   * The program's own functions in place of the tables of hosts and public suffixes, which a page
   * loads if a metric asks for them: of a text, the host or domain as candidates are written.
   */
  normalizers?: { host?: (text: string) => string; domain?: (text: string) => string };
  /** The longest random wait before an upload, in seconds; 60 unless written. */
  maxDelay?: number;
  /** Whether reports are sent in the background; without it only `flush` sends. */
  background?: boolean;
  /** The name of the device's database in this origin; "telemetry" unless written. */
  name?: string;
  /** Another store than a database of this origin. */
  store?: Store;
  /** For tests. */
  clock?: Clock;
  /** For tests. */
  coins?: Coins;
}

/** One device's telemetry in one store, which tabs share. */
export class Client {
  /**
   * Open a device within two seconds; it is created at the first use. ParamsError or MetricError for
   * mistakes of the program, and nothing else: where storage is blocked or does not answer, and in a
   * page without a secure context, which has no WebCrypto, the client is disabled.
   */
  static open(options: OpenOptions): Promise<Client>;
  /** Why nothing is recorded, undefined if it is; a store that answers again ends it. */
  readonly disabled: string | undefined;
  /** The metrics by name, with what they say to people. */
  readonly metrics: ReadonlyMap<string, Metric>;
  /**
   * Keep a noisy report of a value for sending. It returns at once: what must be stored is stored soon
   * after, and a page that ends leaves it to the next one. MetricError for a metric that is not in the
   * registry, ReportError for a value that is not of its kind.
   */
  record(name: string, value: unknown): Outcome;
  /** Store what is in memory and send what waits now, within `timeout` seconds, 10 unless written. */
  flush(options?: { timeout?: number }): Promise<Flushed>;
  /** How many finished reports have no answer yet. */
  waiting(): Promise<number>;
  spent(): Promise<Spent>;
  /** What has left the device, or may have with a page that ended, the very bytes, the oldest first. */
  log(): Promise<Sent[]>;
  counters(): Promise<Record<string, number>>;
  /** Refuse a metric from now on, in all tabs, and drop its waiting reports; the page keeps the choice. */
  optOut(name: string): Promise<void>;
  /** End consent: erase everything but the nats reserved, and say within five seconds what remains. */
  withdraw(): Promise<Withdrawal>;
  /** Store what is in memory and end the background sender; what waits stays in the store. */
  close(): Promise<void>;
}

/** A database of this origin. */
export function indexedDbStore(name: string): Store;
