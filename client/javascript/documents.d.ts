// What a store holds: plain records, which only this package writes.

import type { Dimension, Interval, Params, Sent } from "./index.js";

/** What the registry says of a metric on the day of an event; a scope that begins keeps to it. */
export interface Terms {
  day: string;
  /** The first day of the epoch. */
  first: string;
  /** The last one. */
  end: string;
  /** The fingerprints of its parameters, one for each part. */
  accepted: string[];
  patterns: number;
  interval: Interval;
  /** Reports that the epoch may have; infinity for any number. */
  most: number;
  segments: readonly Dimension[];
}

/**
 * One scope: what it has answered for, never a value. `admitted` has the reports of each bit pattern,
 * by its keyed name and their fingerprints; `last` is the name of the last one, and `permanent` its
 * permanent response.
 */
export interface Scope extends Omit<Terms, "day" | "accepted" | "segments"> {
  metric: string;
  epoch: string;
  /** The permanent fingerprint. */
  response: string;
  /** A fingerprint. */
  params: string;
  cohort: number;
  permanent: string;
  admitted: Record<string, Record<string, number>>;
  last: string;
  closed: boolean;
}

/**
 * A value on its way into the store: what its metrics tell of it, and their fingerprints. The page is
 * named, and the event numbered in it, so that no event is stored twice.
 */
export interface Recorded {
  page: string;
  seq: number;
  name: string;
  told: (string | number[])[];
  params: string[];
  now: number;
  tag: string;
  isFit: boolean;
}

/** A noisy report, with the keyed name of its bit pattern. */
export interface Prepared {
  metric: string;
  epoch: string;
  params: string;
  cohort: number;
  bits: string;
  pattern: string;
}

/** The open interval of a metric in an epoch, and its smallest tag; without `report` it has had its one. */
export interface Held {
  metric: string;
  epoch: string;
  ends: number;
  seconds: number;
  tag: string;
  terms?: Terms;
  report?: Prepared & { permanent: string; closed: boolean };
}

export interface Device {
  v: number;
  /** The random name of the identity that this belongs to. */
  mark?: string;
  /** Year, metric, scopes, nats. */
  reserved: [number, string, string, number][];
  scopes: Scope[];
  /** By fingerprint. */
  params: Record<string, Params>;
  /** By metric and epoch. */
  held: Record<string, Held>;
  /** By page, the last event that is in the store. */
  done: Record<string, number>;
  counters: Record<string, number>;
  /** The last year of which it is not known what was reserved. */
  lost?: number;
  /** Whether that year was seen to end. */
  lostIsOver?: boolean;
  sending: { failures: number; asked: number; pause: number };
  /** The last day of silence by metric. */
  stopped: Record<string, string>;
}

export interface Waiting {
  metric: string;
  params: string;
  cohort: number;
  bits: string;
  due: number;
}

export interface Pending {
  id: string;
  body: string;
  metric: string;
  attempts: number;
  /** The moment of the first attempt, or when it was made ready to leave with its page. */
  first: number;
  claimed: number;
  backoff: number;
}

export interface Spool {
  reports: Waiting[];
  uploads: Pending[];
  /** By metric, the moment of its last attempt, and which part of an interval goes by after a rest. */
  last: Record<string, [number, number]>;
}

/** What a store holds, by name. */
export interface Documents {
  /** The secret is a CryptoKey where the store can hold one. */
  identity?: { mark: string; secret: object | string };
  device?: Device;
  spool?: Spool;
  log?: Sent[];
}
