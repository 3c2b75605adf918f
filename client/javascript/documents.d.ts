// Documents of a store: plain records that only this package writes.

import type { Dimension, Epoch, Interval, Params, SentUpload } from "./index.js";

/** Rules of a metric's entry on the day of an event. A scope that begins keeps them. */
export interface MetricRules {
  day: string;
  /** First day of the epoch. */
  first: string;
  /** Last day of the epoch. */
  end: string;
  /** Fingerprints of the parameter sets, one for each part. */
  accepted: string[];
  interval: Interval;
  /** Largest number of reports in the epoch, infinity if there is none. */
  most: number;
  segments: readonly Dimension[];
}

/** A scope that has reported. It never contains a value. */
export interface Scope extends Omit<MetricRules, "day" | "accepted" | "segments"> {
  metric: string;
  epoch: string;
  /** Permanent fingerprint. */
  response: string;
  /** Fingerprint of the parameters of the last report. */
  params: string;
  cohort: number;
  /** Memoized permanent response, in base64url. */
  permanent: string;
  /** Number of reports by fingerprint. */
  reports: Record<string, number>;
}

/**
 * A recorded event on its way into the store. The page has a name and the event a number in it, so that no
 * event is stored twice.
 */
export interface RecordedEvent {
  page: string;
  seq: number;
  name: string;
  /** Input of the encoder: bits, or a text to hash. */
  input: string | number[];
  /** Fingerprint of the metric when the value was recorded. */
  params: string;
  timestamp: number;
  tag: string;
  fits: boolean;
}

/** A noisy report of an epoch. */
export interface PreparedReport {
  metric: string;
  epoch: string;
  params: string;
  cohort: number;
  bits: string;
}

/** The open interval of a metric in an epoch. Without `report` the interval has had its report. */
export interface PendingReport {
  metric: string;
  epoch: string;
  ends: number;
  seconds: number;
  /** Smallest tag of the interval's events. */
  tag: string;
  rules?: MetricRules;
  report?: PreparedReport & { permanent: string };
}

export interface Device {
  v: number;
  /** Random name of the identity to which these records belong. */
  secretId?: string;
  /** Year, metric, scopes, nats. */
  reserved: [number, string, string, number][];
  scopes: Scope[];
  /** By fingerprint. */
  params: Record<string, Params>;
  /** By metric and epoch. */
  pending: Record<string, PendingReport>;
  /** Number of the last stored event by page. */
  storedEvents: Record<string, number>;
  counters: Record<string, number>;
  /** Last year whose reservations are unknown. */
  lost?: number;
  /** Whether the clock has passed from that year into the next one. */
  lostIsOver?: boolean;
  sending: { failures: number; asked: number; pause: number };
  /** Last day of a stop by metric. */
  stopped: Record<string, string>;
}

/** A report that has left its interval and waits for a time to leave the device. */
export interface FinishedReport {
  metric: string;
  params: string;
  cohort: number;
  bits: string;
  /** Earliest time at which the background sender sends it. */
  sendAfter: number;
  /** End of the epoch, for `interval = "epoch"`. The report leaves before it or never. */
  leavesBefore?: number;
  /** Interval and epoch in the report's fingerprint, by which a collector judges it. */
  interval: Interval;
  epoch?: Epoch;
}

/** An upload without a result. */
export interface QueuedUpload {
  id: string;
  body: string;
  metric: string;
  interval: Interval;
  leavesBefore?: number;
  attempts: number;
  /** Time of the first attempt, or when the upload was made ready to leave with its page. */
  first: number;
  /** End of the time for which the upload belongs to one tab. */
  claimed: number;
  /** Time of the next attempt. */
  backoff: number;
}

export interface Spool {
  reports: FinishedReport[];
  uploads: QueuedUpload[];
  /** By metric: time of the last attempt, and the part of an interval that passes after its cooldown. */
  last: Record<string, [number, number]>;
}

/** Documents of a store by name. */
export interface Documents {
  /** The secret is a CryptoKey where the store can hold one. */
  identity?: { secretId: string; secret: object | string };
  device?: Device;
  spool?: Spool;
  log?: SentUpload[];
}
