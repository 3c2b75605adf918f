import type { Client } from "./index.js";

/** <rappor-panel>: what is collected, what was sent, and a button that ends it. */
export class RapporPanel extends HTMLElement {
  client: Client | undefined;
  /** Show what there is now. */
  refresh(): Promise<void>;
}
