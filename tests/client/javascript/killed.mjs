// Records a value of a durable metric on a device in a file and is killed at once: killed.mjs PATH NAME.

import { fileStore } from "../../../client/javascript/file.js";
import { Client } from "../../../client/javascript/index.js";
import { DURABLE } from "./registries.mjs";

const [path, name] = process.argv.slice(2);
const client = await Client.open({ registry: DURABLE, consent: true, store: fileStore(path) });
console.log(client.record(name, "hidden").outcome);
process.kill(process.pid, "SIGKILL");
