// Records a value on a device in a file and kills itself at once: node killed.mjs PATH METRIC.

import { fileStore } from "../../../client/javascript/file.js";
import { Client } from "../../../client/javascript/index.js";
import { DURABLE } from "./registries.mjs";

const [path, name] = process.argv.slice(2);
const client = await Client.open({ registry: DURABLE, consent: true, store: fileStore(path) });
console.log(client.record(name, "hidden").outcome);
process.kill(process.pid, "SIGKILL");
