// Records and withdraws on a device in a file, under a limit of the size of files: node full_disk.mjs PATH.

import { existsSync } from "node:fs";

import { fileStore } from "../../../client/javascript/file.js";
import { Client } from "../../../client/javascript/index.js";
import { outcomeOf } from "./outcome.mjs";
import { REGISTRY } from "./registries.mjs";

const [path] = process.argv.slice(2);
console.warn = () => {};
const client = await Client.open({ registry: REGISTRY, consent: true, store: fileStore(path) });
const outcome = await outcomeOf(client, "page", "a");
const [hasLock, hasNewFile] = ["lock", "tmp"].map((ending) => existsSync(`${path}.${ending}`));
console.log(JSON.stringify({ outcome, hasLock, hasNewFile, withdrawal: await client.withdraw() }));
