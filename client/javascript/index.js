// Public API of the package.

export { Client } from "./src/client.js";
export { MetricError, ParamsError, RapporError, ReportError } from "./src/errors.js";
export { indexedDbStore } from "./src/indexed_db_store.js";
