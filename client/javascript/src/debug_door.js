// What developers see at once while they build a page: example reports. They are made under a secret
// that is thrown away and go to the collector's debug door, which shows them and counts none. Of what
// is recorded this module is told the metric's name, never the value.

import { base64url, fromBase64url } from "./bytes.js";
import { dayOf } from "./calendar.js";
import { within } from "./deadline.js";
import { newDevice } from "./device.js";
import { Maker } from "./making.js";
import { metricOf, together } from "./registry.js";
import { instantaneousResponse, systemCoins } from "./responses.js";
import { SECRET_BYTES, secretOf } from "./secret.js";
import { newId, uploadJson } from "./wire.js";

/** @typedef {import("../index.js").Metric} Metric */

const MOST = 4; // records whose examples are under way
const PATIENCE = 5; // seconds for an example, and for all of them at the end
/** @type {Record<string, string | number[]>} */
const EXAMPLES = { bloom: "example.org", onehot: [0], buckets: [0] };

/** Sends an example of each metric that is recorded, and says in the console what becomes of it. */
export class DebugDoor {
  #registry;
  #transport;
  #secret = secretOf(crypto.getRandomValues(new Uint8Array(SECRET_BYTES)));
  #device = newDevice();
  /** @type {Set<Promise<void>>} */ #underWay = new Set();
  #ended = new AbortController();

  /**
   * @param {import("../index.js").Registry} registry of a device without public properties
   * @param {import("../index.js").Transport} transport to the door
   */
  constructor(registry, transport) {
    this.#registry = registry;
    this.#transport = transport;
  }

  /**
   * Send examples of a metric, and of what is answered together with it. Where some are under way,
   * further ones are dropped.
   * @param {string} name
   */
  show(name) {
    if (this.#ended.signal.aborted || this.#underWay.size >= MOST) return;
    const sending = this.#send(name).finally(() => this.#underWay.delete(sending));
    this.#underWay.add(sending);
  }

  /** Wait for what is under way, and send nothing more. */
  async close() {
    await within(Promise.all(this.#underWay), PATIENCE).catch(() => {}); // the rest is severed
    this.sever();
  }

  /** Send nothing more. */
  sever() {
    this.#ended.abort();
  }

  /** @param {string} name */
  async #send(name) {
    for (const each of together(this.#registry, name)) {
      if (this.#ended.signal.aborted) return;
      const told = await this.#told(metricOf(this.#registry, each)).catch((error) => error.name);
      if (!this.#ended.signal.aborted) console.warn(`rappor: debug: an example of ${each}: ${told}`);
    }
  }

  /**
   * Send an example and say in words what became of it.
   * @param {Metric} metric
   * @returns {Promise<string>}
   */
  async #told(metric) {
    const body = await this.#example(metric);
    const { signal } = this.#ended;
    const answer = await within(this.#transport.send(body, { signal }), PATIENCE);
    if (answer.status !== 200) return `the collector answered with status ${answer.status}`;
    const { status, reason = "" } = JSON.parse(answer.body).reports[0];
    return `${status} ${reason}`.trim();
  }

  /** @param {Metric} metric */
  async #example(metric) {
    const maker = new Maker(await this.#secret);
    const told = EXAMPLES[metric.params.encoding] ?? [];
    const today = dayOf(Date.now() / 1000);
    const made = await maker.entering(this.#device, metric, told, today);
    await maker.complete([made]);
    const permanent = fromBase64url(made.permanent ?? "");
    const bits = base64url(instantaneousResponse(permanent, made.params, systemCoins));
    const { params, cohort } = made;
    return uploadJson(newId(), [{ metric: metric.name, params: params.fingerprint, cohort, bits }]);
  }
}
