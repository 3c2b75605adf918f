// Public API of the package, for pages and workers. index.d.ts documents every name.
//
// The package has three more entry points: panel.js (an element that shows a person the reports), file.js (a
// store for programs on Node) and testing.js (a store in memory).

export { Client } from "./src/client.js";
export { MetricError, ParamsError, RapporError, ReportError } from "./src/errors.js";
export { indexedDbStore } from "./src/indexed_db_store.js";
