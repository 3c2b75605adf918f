// The test vectors of the protocol (tests/vectors): the client computes and writes the stated values.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { concatBytes, encodeUtf8, toBase64url, toHex, readIntegers } from "../../../client/javascript/src/bytes.js";
import { encode, readValue } from "../../../client/javascript/src/encodings.js";
import { ParamsError, ReportError } from "../../../client/javascript/src/errors.js";
import { fingerprints, readParams } from "../../../client/javascript/src/params.js";
import { loadNormalizers, normalize } from "../../../client/javascript/src/normalizers.js";
import { epsilonReports } from "../../../client/javascript/src/loss.js";
import {
  chooseDay,
  chooseOwnBuckets,
  choosePart,
  deriveCohort,
  drawInstantaneousResponse,
  derivePermanentResponse,
  deriveCoin,
  encodeScope,
} from "../../../client/javascript/src/randomizer.js";
import { expand, importSecret } from "../../../client/javascript/src/secret.js";
import { writeUpload } from "../../../client/javascript/src/wire.js";

const VECTORS = new URL("../../vectors/", import.meta.url);

/** Return the rows of a file of vectors. */
const load = (name) => JSON.parse(readFileSync(new URL(`${name}.json`, VECTORS), "utf8"));

const fromHex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
const keyOf = (hex) => importSecret(fromHex(hex));
const threshold = (probability) => Math.floor(probability * 2 ** 32 + 0.5);
const NOISE = { f: threshold(0.25), p: threshold(0.25), q: threshold(0.75), v: 1 };

/** Return the parameters of a row, which has no probabilities: the bits of a value do not depend on them. */
const paramsOf = ({ k, h = 1, m = 1, encoding = "bloom", categories = [], normalize }) =>
  readParams({ ...NOISE, k, h, m, encoding, categories, normalize });

/** Return the bits of a value, in hexadecimal digits. */
const bitsOf = async (params, value, cohort) =>
  toHex(await encode(params, readValue(params, value).input, cohort));

test("every value sets the stated bits in every stated cohort", async () => {
  for (const row of load("hashing")) {
    assert.equal(await bitsOf(await paramsOf(row), row.value, row.cohort), row.bits);
  }
});

test("every value of another encoding sets the stated bits", async () => {
  for (const row of load("encoding")) {
    assert.equal(await bitsOf(await paramsOf(row), row.value, 0), row.bits);
  }
});

test("every text has the stated host", async () => {
  await loadNormalizers(new Set(["host"]));
  for (const { text, host } of load("host")) assert.equal(normalize("host", text) ?? "", host, text);
});

test("a text beyond the limit becomes the empty text", async () => {
  await loadNormalizers(new Set(["host", "domain"]));
  for (const row of load("long_value")) {
    const params = await paramsOf(row);
    const value = row.unit.repeat(row.times);
    assert.equal(await bitsOf(params, value, row.cohort), row.bits);
    assert.equal(readValue(params, value).fits, row.fits);
  }
});

test("every parameter set has the stated fingerprints", async () => {
  for (const row of load("fingerprint")) {
    const document = { ...row.document, ...(row.categories && { categories: row.categories }) };
    const { fingerprint, permanentFingerprint } = await fingerprints(document);
    assert.equal(fingerprint, row.fingerprint);
    assert.equal(permanentFingerprint, row.permanent_fingerprint);
  }
});

test("every secret has the stated cohort in every scope", async () => {
  for (const row of load("cohort")) {
    const params = await readParams(row.params);
    const scope = encodeScope(row.metric, row.epoch, params);
    assert.equal(await deriveCohort(await keyOf(row.secret), scope, params), row.cohort);
  }
});

test("every secret chooses the stated part, which has bits and a fingerprint of its own", async () => {
  const chosenParts = new Set();
  for (const row of load("part")) {
    const secret = await keyOf(row.secret);
    const params = await readParams(row.params);
    const u = await deriveCoin(secret, "part", encodeScope(row.metric, row.epoch, params));
    const parts = row.parts.map(([name, share]) =>
      share === null ? { name } : { name, threshold: threshold(share) },
    );
    assert.equal(choosePart(parts, u).name, row.part);
    const partParams = await readParams(row.params, row.part);
    assert.equal(partParams.fingerprint, row.fingerprint);
    const cohort = await deriveCohort(secret, encodeScope(row.metric, row.epoch, partParams), partParams);
    assert.equal(cohort, row.cohort);
    assert.equal(await bitsOf(partParams, row.value, cohort), row.bits);
    chosenParts.add(row.part);
  }
  assert.equal(chosenParts.size, 3);
});

test("every secret is in the stated samples, and in no other", async () => {
  for (const row of load("sample")) {
    const scope = encodeScope(row.metric, row.epoch, await readParams(row.params));
    const u = await deriveCoin(await keyOf(row.secret), "sample", scope);
    for (const [samplingRate, isInSample] of row.samples) assert.equal(u < threshold(samplingRate), isInSample);
  }
});

test("bits, permanent response and the report for the stated coins agree", async () => {
  for (const row of load("response")) {
    const { encoding, k, h, m } = row;
    const [f, p, q] = [row.f / 2, row.p, row.q].map(threshold); // a document contains f/2
    const params = await readParams({ v: 1, encoding, k, h, m, f, p, q });
    const secret = await keyOf(row.secret);
    const scope = encodeScope(row.metric, row.epoch, params);
    assert.equal(await deriveCohort(secret, scope, params), row.cohort);
    const bits = await encode(params, readValue(params, row.value).input, row.cohort);
    assert.equal(toHex(bits), row.bits);
    const permanent = await derivePermanentResponse(secret, scope, params, bits);
    assert.equal(toHex(permanent), row.permanent);
    const seed = await keyOf(row.coins_seed);
    const coins = readIntegers(await expand(seed, "coins", 4 * row.k));
    assert.equal(toHex(drawInstantaneousResponse(permanent, params, () => coins)), row.report);
  }
});

test("a report of one bucket is the stated bucket, after the stated padding or cutting", async () => {
  for (const row of load("bucket")) {
    const params = await readParams({ ...row.document, ...(row.categories && { categories: row.categories }) });
    assert.equal(params.fingerprint, row.fingerprint);
    assert.equal(params.permanentFingerprint, row.permanent_fingerprint);
    const secret = await keyOf(row.secret);
    const scope = encodeScope(row.metric, row.epoch, params);
    assert.equal(await deriveCohort(secret, scope, params), row.cohort);
    const value = row.value === "NaN" ? NaN : row.value;
    const bits = await encode(params, readValue(params, value).input, row.cohort);
    const buckets = Array.from({ length: params.k }, (_, i) => i).filter((i) => (bits[i >> 3] >> (i & 7)) & 1);
    assert.deepEqual(buckets, row.own);
    const info = concatBytes(encodeUtf8(`rappor/1/grr\0${scope}\0`), bits);
    const coins = readIntegers(await expand(secret, info, 4 * (params.items + 2)));
    assert.deepEqual(chooseOwnBuckets(bits, params, coins), row.chosen);
    const permanent = await derivePermanentResponse(secret, scope, params, bits);
    assert.equal(toHex(permanent), row.report);
    assert.equal(toHex(drawInstantaneousResponse(permanent, params, () => [])), row.report);
    const loss = epsilonReports([[params, 1]]);
    assert.ok(loss > 3.9999 && loss <= 4);
    assert.equal(loss, epsilonReports([[params, Infinity]])); // repeated reports are equal
  }
});

test("a set is an array or a Set of texts, whose order and repetitions do not matter", async () => {
  const document = { v: 1, encoding: "set", k: 112, m: 128, items: 2, keep: 2100421408 };
  const params = await readParams(document);
  const expected = await bitsOf(params, ["git", "vim"], 7);
  for (const value of [["vim", "git", "vim", ""], new Set(["git", "vim"]), ["git", "vim", "\ud800"]]) {
    assert.equal(await bitsOf(params, value, 7), expected);
  }
  assert.equal(await bitsOf(params, ["", ""], 7), await bitsOf(params, [], 7));
  const fits = (value) => readValue(params, value).fits;
  assert.deepEqual([[], ["a", "b"], ["a", "b", "c"], ["\ud800"]].map(fits), [true, true, false, false]);
  const wrongValues = ["git", null, undefined, 7, {}, new Map(), ["a", 7], [null], [["a"]], "ab"[Symbol.iterator]()];
  const letters = function* () {
    yield "a";
  };
  const bytes = new TextEncoder().encode("git");
  wrongValues.push(letters(), bytes, [bytes], bytes.buffer, new WeakSet(), true, Symbol("git"));
  for (const value of wrongValues) assert.throws(() => readValue(params, value), ReportError);
});

/** Return the parameters of a row with fields. Some rows have categories beside their document. */
const readTupleParams = ({ document, categories }) =>
  readParams({ ...document, ...(categories && { categories }) });

test("a value with fields has the stated bits, and fits where it is stated", async () => {
  for (const row of load("tuple")) {
    const params = await readTupleParams(row);
    assert.equal(params.fingerprint, row.fingerprint);
    assert.equal(params.permanentFingerprint, row.permanent_fingerprint);
    const scope = encodeScope(row.metric, row.epoch, params);
    assert.equal(await deriveCohort(await keyOf(row.secret), scope, params), row.cohort);
    assert.equal(await bitsOf(params, row.value, row.cohort), row.bits);
    assert.equal(readValue(params, row.value).fits, row.fits);
  }
});

test("a value that lacks a field, or has another key, is of the wrong kind", async () => {
  const { document, good, bad } = load("bad_tuple");
  const params = await readTupleParams({ document });
  assert.ok(readValue(params, good).fits);
  const withoutJson = [new Map(Object.entries(good)), undefined, () => {}, Symbol("site"), 7n, Object.create(good)];
  for (const value of [...bad.map((row) => row.value), ...withoutJson]) {
    assert.throws(
      () => readValue(params, value),
      (error) => error instanceof ReportError && !/Bonn|example|land|Country|\x1f/.test(error.message),
    );
  }
});

test("a field that a value inherits is no field of it, whatever other keys the value has", async () => {
  const { document, good } = load("bad_tuple");
  const params = await readTupleParams({ document });
  const [first, ...rest] = Object.keys(good);
  const own = Object.fromEntries(rest.map((name) => [name, good[name]]));
  const inherited = Object.assign(Object.create({ [first]: good[first] }), own);
  const hidden = Object.defineProperty({ ...own }, first, { value: good[first], enumerable: false });
  for (const value of [inherited, { ...own, __proto__: good }, hidden]) {
    assert.throws(() => readValue(params, value), ReportError);
    assert.throws(() => readValue(params, Object.assign(value, { other: "a" })), ReportError);
  }
  assert.ok(readValue(params, Object.assign(Object.create({ other: "a" }), good)).fits);
  assert.ok(readValue(params, Object.assign(Object.create(null), good)).fits);
});

test("an error of a getter, an iterator or a proxy is a value of the wrong kind, without its message", async () => {
  const raise = () => {
    throw new TypeError("hidden");
  };
  const traps = ["get", "getOwnPropertyDescriptor", "ownKeys"];
  const proxies = traps.map((name) => new Proxy({ site: "a", country: "b" }, { [name]: raise, getPrototypeOf: raise }));
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  const broken = Object.assign(["a"], { [Symbol.iterator]: raise });
  const { document, good } = load("bad_tuple");
  const getter = Object.defineProperty({ ...good }, Object.keys(good)[0], { get: raise, enumerable: true });
  const values = [...proxies, new Proxy([], { get: raise }), proxy, broken, getter, { toString: raise, valueOf: raise, [Symbol.toPrimitive]: raise }];
  const documents = [
    document,
    { v: 1, encoding: "set", k: 112, m: 128, items: 2, keep: 2100421408 },
    { v: 1, encoding: "bloom", k: 32, m: 1, h: 1, f: 0, f0: 0, p: 2 ** 30, q: 2 ** 31 },
    { v: 1, encoding: "boolean", k: 1, m: 1, f: 0, f0: 0, p: 2 ** 30, q: 2 ** 31 },
    { v: 1, encoding: "buckets", k: 2, m: 1, f: 0, f0: 0, p: 2 ** 30, q: 2 ** 31, categories: ["1"] },
  ];
  for (const entry of documents) {
    const params = await readParams(entry);
    for (const value of values) {
      assert.throws(
        () => readValue(params, value),
        (error) => error instanceof ReportError && !/hidden/.test(error.stack),
      );
    }
  }
});

test("of a million items only as many are normalized as own every bucket", async () => {
  const items = Array.from({ length: 1e6 }, (_, i) => `item ${i}`);
  const document = { v: 1, encoding: "set", k: 2040, m: 1, items: 64, keep: 2693270299, normalize: "casefold" };
  const params = await readParams(document);
  const { input, fits } = readValue(params, items);
  assert.deepEqual(input, items.slice(0, 1e5));
  assert.ok(!fits);
  assert.ok((await encode(params, input, 0)).every((byte) => byte === 255));
});

test("bits are forced to 1 and to 0 with two probabilities", async () => {
  for (const row of load("asymmetric")) {
    const params = await readParams(row.document);
    assert.equal(params.fingerprint, row.fingerprint);
    assert.equal(params.permanentFingerprint, row.permanent_fingerprint);
    const secret = await keyOf(row.secret);
    const scope = encodeScope(row.metric, row.epoch, params);
    assert.equal(await deriveCohort(secret, scope, params), row.cohort);
    const bits = await encode(params, row.value, row.cohort);
    assert.equal(toHex(bits), row.bits);
    assert.equal(toHex(await derivePermanentResponse(secret, scope, params, bits)), row.permanent);
  }
});

test("every secret draws the stated day of an epoch", async () => {
  for (const row of load("day")) {
    const scope = encodeScope(row.metric, row.epoch, await readParams(row.document));
    const u = await deriveCoin(await keyOf(row.secret), "day", scope);
    assert.equal(chooseDay(u, row.days), row.day);
  }
});

test("every good upload is written to the byte", () => {
  for (const { body } of load("upload")) {
    const { id, reports } = JSON.parse(body);
    assert.equal(writeUpload(id, reports), body);
  }
});

test("encodings and normalizers that this version does not know are refused", async () => {
  const known = { k: 8, h: 1, m: 1, encoding: "bloom", categories: [] };
  for (const name of ["fuzzy", "constructor", "__proto__", ""]) {
    await assert.rejects(readParams({ ...NOISE, ...known, encoding: name }), ParamsError);
    await assert.rejects(readParams({ ...NOISE, ...known, normalize: name }), ParamsError);
  }
});

test("base64url has the letters of URLs and no padding", () => {
  assert.equal(toBase64url(Uint8Array.of(255, 239, 190)), "_---");
});
