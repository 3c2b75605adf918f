// Documents of a store: plain records that only this package writes.
//
//     identity    the secret and its random name; never changes
//     device      the state: scopes, pending reports, reserved nats, counters
//     spool       finished reports and their uploads
//     log         sent uploads, for people
//
// All times are in seconds since 1970 (UTC), all days are texts such as 2026-11-30.

import type { Dimension, Epoch, Interval, Params, SentUpload } from "./index.js";

/**
 * Rules of a metric's entry on the day of an event. A scope that begins keeps them until its epoch ends, also if the
 * registry changes.
 */
export interface MetricRules {
  day: string;
  /** First day of the epoch. */
  first: string;
  /** Last day of the epoch. */
  end: string;
  /** Fingerprints of the parameter sets, one for each part. */
  accepted: string[];
  interval: Interval;
  /** Largest number of reports in the epoch, infinity for an epoch without an end. */
  most: number;
  segments: readonly Dimension[];
}

/**
 * A scope that has reported: one metric in one epoch under one permanent response. It never contains a value, and the
 * permanent response contains the value's bits with noise only.
 */
export interface Scope extends Omit<MetricRules, "day" | "accepted" | "segments"> {
  metric: string;
  /** Name of the epoch, such as 2026-Q4; empty for life. */
  epoch: string;
  /** Permanent fingerprint of the parameters. */
  response: string;
  /** Fingerprint of the parameters of the last report. */
  params: string;
  cohort: number;
  /** Memoized permanent response, in base64url. */
  permanent: string;
  /** Number of reports by fingerprint of their parameters. */
  reports: Record<string, number>;
}

/** Input of the encoder for one value: indices of bits, a text to hash, or the texts of a set. */
export type Input = string | number[] | string[];

/**
 * A recorded event that is not stored yet. `page` is the random name of the page, and `seq` is the number of the event in
 * this page. The store recognizes by both an event that it has stored before.
 */
export interface RecordedEvent {
  page: string;
  seq: number;
  /** Name of the metric. */
  name: string;
  /** Input of the encoder. */
  input: Input;
  /** Fingerprint of the metric when the value was recorded. */
  params: string;
  timestamp: number;
  /** Random 64-bit integer in hex. The event with the smallest tag of its interval is reported. */
  tag: string;
  /** False for a value outside all categories and buckets, or without a normal spelling. It is counted as `unfit`. */
  fits: boolean;
}

/** A report with its noise, and the epoch that it belongs to. */
export interface PreparedReport {
  metric: string;
  epoch: string;
  /** Fingerprint of its parameters. */
  params: string;
  cohort: number;
  /** Noisy bits, in base64url. */
  bits: string;
}

/** The open interval of a metric in an epoch, and its pending report. Without `report` the interval has had its report. */
export interface PendingReport {
  metric: string;
  epoch: string;
  /** End of the interval. */
  ends: number;
  /** Length of the interval in seconds. */
  seconds: number;
  /** Smallest tag of the interval's events. */
  tag: string;
  rules?: MetricRules;
  report?: PreparedReport & { permanent: string };
}

/** State of a device. */
export interface Device {
  /** Version of the record. */
  v: number;
  /** Random name of the identity to which these records belong; undefined if only reserved nats have remained. */
  secretId?: string;
  /** Reserved nats: year, metric, text that names its scopes, nats. */
  reserved: [number, string, string, number][];
  scopes: Scope[];
  /** Parameter sets by fingerprint, of all registries so far. */
  params: Record<string, Params>;
  /** Open intervals by metric and epoch, "theme 2026-Q4". */
  pending: Record<string, PendingReport>;
  /** Number of the last stored event by page. */
  storedEvents: Record<string, number>;
  /** Event counters by name. */
  counters: Record<string, number>;
  /** Year whose reservations were lost with the state of an earlier device (reservation.js). */
  lost?: number;
  /** Whether the clock has shown the year after the lost year. */
  lostIsOver?: boolean;
  /** Failed attempts in a row, the end of a wait that the collector asked for, and the end of the pause of all uploads. */
  sending: { failures: number; waitUntil: number; pauseUntil: number };
  /** Last day of the collector's stop, by metric. */
  stopped: Record<string, string>;
}

/** A report whose interval has ended, and which waits for a time to leave the device. */
export interface FinishedReport {
  metric: string;
  params: string;
  cohort: number;
  bits: string;
  /** Earliest time at which the background sender sends the report. */
  sendAfter: number;
  /** End of the epoch, for `interval = "epoch"`. The report leaves before this time or never. */
  leavesBefore?: number;
  /** Interval of the scope, and epoch of the parameter set. The cooldown of the metric is computed from both. */
  interval: Interval;
  epoch?: Epoch;
}

/** An upload of one report without a result. */
export interface QueuedUpload {
  id: string;
  /** Text that leaves the device. It is the same in all attempts. */
  body: string;
  metric: string;
  interval: Interval;
  leavesBefore?: number;
  /** Number of attempts by steps of an uploader. An attempt of a page that ends does not count: it sees no response. */
  attempts: number;
  /** Time of the first attempt, or when the upload was made ready to leave with its page. 0 before. */
  first: number;
  /** End of the claim, in which one tab sends the upload and no other tab does. */
  claimed: number;
  /** End of the backoff after a failure. */
  backoff: number;
}

/** Reports that have left their interval. */
export interface Spool {
  reports: FinishedReport[];
  uploads: QueuedUpload[];
  /** By metric: time of the last attempt, and the random fraction of an interval that is its spread (cooldowns.js). */
  last: Record<string, [number, number]>;
}

/** Documents of a store by name. A document that was never written is undefined. */
export interface Documents {
  /** The secret is a CryptoKey if the store can contain one, else its 32 bytes in base64url. */
  identity?: { secretId: string; secret: object | string };
  device?: Device;
  spool?: Spool;
  log?: SentUpload[];
}
