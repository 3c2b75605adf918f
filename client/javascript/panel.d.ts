import type { Client } from "./index.js";

/** <rappor-panel>: the metrics, the sent uploads, and a button that withdraws consent. */
export class RapporPanel extends HTMLElement {
  client: Client | undefined;
  /** Show the current loss and uploads. */
  refresh(): Promise<void>;
}
