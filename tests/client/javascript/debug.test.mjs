// The debug door: developers see examples at once, and nothing of the device or its values.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import { Client, ParamsError } from "../../../client/javascript/index.js";
import { fromBase64url } from "../../../client/javascript/src/bytes.js";
import { DebugDoor } from "../../../client/javascript/src/debug_door.js";
import { encode } from "../../../client/javascript/src/encodings.js";
import { ONE, readParams } from "../../../client/javascript/src/params.js";
import { readRegistry } from "../../../client/javascript/src/registry.js";
import { memoryStore } from "../../../client/javascript/testing.js";
import { metricOf, registryOf } from "./registries.mjs";

const PLAIN = { v: 1, h: 1, m: 1, f: 0, p: 0, q: ONE }; // without noise: a report shows its value
const NAMES = ["light", "dark", "grey"];
const SHAPES = {
  text: { k: 64, m: 16, encoding: "bloom" },
  theme: { k: 3, encoding: "onehot", categories: NAMES },
  flags: { k: 3, encoding: "flags", categories: NAMES },
  sound: { k: 1, encoding: "boolean" },
  seconds: { k: 3, encoding: "buckets", categories: ["1", "5"] },
};
const TOLD = { text: "example.org", theme: [0], flags: [], sound: [], seconds: [0] };
const VALUES = { text: "true value", theme: "dark", flags: ["grey"], sound: true, seconds: 3 };
const metrics = Object.entries(SHAPES).map(([name, shape]) =>
  metricOf(name, { ...PLAIN, ...shape }, { segments: [["version", ["1", "2"]]] }),
);
const REGISTRY = await registryOf(await Promise.all(metrics));

/** Return a collector's address, and what is posted there. */
async function door(t) {
  const posted = [];
  const server = createServer(async (request, response) => {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    const { authorization } = request.headers;
    posted.push({ path: request.url, authorization, body: String(Buffer.concat(pieces)) });
    response.end('{"reports":[{"status":"refused","reason":"unknown-metric"}]}');
  });
  t.after(() => server.closeAllConnections() ?? server.close());
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { collector: `http://127.0.0.1:${server.address().port}/a`, posted };
}

/** Open a device of a page that is being built; its own reports wait. */
function open(collector, more) {
  const given = { registry: REGISTRY, consent: true, background: false, debug: "sesame" };
  return Client.open({ ...given, segment: { version: "2" }, store: memoryStore(), collector, ...more });
}

test("examples do not depend on values", async (t) => {
  const { collector, posted } = await door(t);
  const lines = [];
  t.mock.method(console, "warn", (line) => lines.push(line));
  const names = Object.keys(VALUES);
  for (const name of names) {
    for (const value of [VALUES[name], Symbol("of no kind")]) {
      const client = await open(collector);
      if (value === VALUES[name]) client.record(name, value);
      else assert.throws(() => client.record(name, value));
      await client.close(); // it waits for what is under way
    }
  }
  assert.deepEqual(new Set(posted.map(({ path }) => path)), new Set(["/a/v1/debug"]));
  assert.deepEqual(new Set(posted.map((each) => each.authorization)), new Set(["Bearer sesame"]));
  const reports = posted.map(({ body }) => JSON.parse(body).reports[0]);
  assert.deepEqual(reports.map(({ metric }) => metric), names.flatMap((name) => [name, name]));
  const plain = (await readRegistry(REGISTRY)).metrics;
  for (const { metric, params, cohort, bits } of reports) {
    assert.equal(params, plain.get(metric).params.fingerprint);
    const shape = await readParams({ ...PLAIN, ...SHAPES[metric] }, "");
    assert.deepEqual(fromBase64url(bits), await encode(shape, TOLD[metric], cohort));
  }
  assert.equal(lines[0], "rappor: debug: an example of text: refused unknown-metric");
});

test("a device that may not record shows nothing", async (t) => {
  const { collector, posted } = await door(t);
  const failing = { holdsKeys: true, update: () => Promise.reject(new Error("blocked")), close() {} };
  t.mock.method(console, "warn", () => {});
  const withdrawn = await open(collector);
  await withdrawn.withdraw();
  const refusing = await open(collector, { optedOut: ["theme"] });
  const asked = await open(collector, { consent: false });
  const disabled = await open(collector, { store: failing });
  for (const client of [withdrawn, refusing, asked, disabled]) {
    assert.equal(client.record("theme", "dark").outcome, "silent");
    await client.close();
  }
  assert.deepEqual(posted, []);
  await assert.rejects(open(undefined, { transport: { send() {} } }), ParamsError);
});

test("a door that hangs holds nobody up, and nothing follows a withdrawal", async () => {
  const sent = [];
  const send = (body, { signal }) => {
    sent.push(body);
    return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  };
  const hanging = new DebugDoor(await readRegistry(REGISTRY), { send });
  for (let i = 0; i < 20; i++) hanging.show("theme");
  while (sent.length < 4) await new Promise(setImmediate);
  hanging.sever();
  hanging.show("sound");
  await hanging.close();
  assert.equal(sent.length, 4);
});
