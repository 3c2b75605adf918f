// The examples in the declarations of the public names, and the program for Node in the README: every example runs,
// and its comments contain its values.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

import * as file from "../../../client/javascript/file.js";
import * as index from "../../../client/javascript/index.js";
import * as testing from "../../../client/javascript/testing.js";
import { REGISTRY } from "./registries.mjs";

const PACKAGE = new URL("../../../client/javascript/", import.meta.url);
const DECLARATIONS = ["index.d.ts", "file.d.ts", "testing.d.ts"];
/** Matches an example in a comment, and the line after the comment. */
const EXAMPLE = /^ *\* @example\n((?: *\*(?! @)(?!\/).*\n)+) *\*\/\n *(.*)$/gm;
const AsyncFunction = (async () => {}).constructor;

/** Return the examples of a file of declarations: the lines of the example, and the declaration after it. */
function examplesOf(file) {
  const text = readFileSync(new URL(file, PACKAGE), "utf8");
  return [...text.matchAll(EXAMPLE)].map(([, body, declaration]) => {
    const lines = body.split("\n").map((line) => line.replace(/^ *\* ?/, ""));
    return { file, declaration, lines };
  });
}

/**
 * Compile an example to a function; return the names of its arguments and its body.
 *
 * A line `expression; // value` becomes a comparison. Imports are left out: their names are arguments.
 */
function compile(lines) {
  const statements = lines
    .filter((line) => !line.startsWith("import "))
    .map((line) => line.replace(/^([^ ].*); \/\/ (.*)$/, "compare($1, $2);"));
  const names = ["compare", "registry", "message", ...Object.keys({ ...index, ...file, ...testing })];
  return [names, `{ ${statements.join("\n")} }`];
}

for (const { file: declarations, declaration, lines } of DECLARATIONS.flatMap(examplesOf)) {
  test(`the example of ${declarations}: ${declaration}`, async () => {
    process.chdir(mkdtempSync(join(tmpdir(), "rappor-"))); // for stores in files
    const client = await index.Client.open({ registry: REGISTRY, consent: true, store: testing.memoryStore() });
    const [names, body] = compile(lines);
    const values = { ...index, ...file, ...testing, client, registry: REGISTRY, compare: assert.deepEqual };
    const run = new AsyncFunction(...names, "client", body);
    await run(...names.map((name) => values[name]), client);
    await client.close();
  });
}

test("the program for Node in the README prints the output below it", async () => {
  const readme = readFileSync(new URL("README.md", PACKAGE), "utf8");
  const [, program, output] = /```js\n(.*?)```\n\n```text\n(.*?)```/s.exec(readme);
  const folder = mkdtempSync(join(tmpdir(), "rappor-"));
  writeFileSync(join(folder, "registry.json"), JSON.stringify(REGISTRY));
  const paths = { "rappor-client": new URL("index.js", PACKAGE), "rappor-client/file": new URL("file.js", PACKAGE) };
  const runnable = program.replace(/from "(rappor-client[^"]*)"/g, (_, name) => `from "${paths[name]}"`);
  writeFileSync(join(folder, "program.mjs"), runnable);
  const { stdout } = await promisify(execFile)(process.execPath, ["program.mjs"], { cwd: folder });
  assert.equal(stdout, output);
});

test("the README has every option of Client.open", () => {
  const declarations = readFileSync(new URL("index.d.ts", PACKAGE), "utf8");
  const [, body] = /interface OpenOptions \{(.*?)\n\}/s.exec(declarations);
  const options = [...body.matchAll(/^  (\w+)\??:/gm)].map(([, name]) => name);
  const readme = readFileSync(new URL("README.md", PACKAGE), "utf8");
  const [, table] = /\| option of `Client.open` .*?\n(.*?)\n\n/s.exec(readme);
  assert.ok(options.length > 10);
  for (const option of options) assert.ok(table.includes(`\`${option}\``), option);
});

test("every public class and function has an example", () => {
  const documented = DECLARATIONS.flatMap(examplesOf).map(({ declaration }) => declaration).join("\n");
  for (const name of Object.keys({ ...file, ...index, ...testing })) {
    if (name !== "Client") assert.ok(documented.includes(name), name); // the methods of Client have examples
  }
  for (const name of ["open", "record", "flush", "queuedCount", "privacySpent", "sentUploads", "eventCounts"]) {
    assert.ok(documented.includes(`${name}(`), name);
  }
});
