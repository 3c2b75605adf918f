import type { Client } from "./index.js";

/**
 * The element `<rappor-panel>`: shows a person whether reports are on, the metrics, the privacy loss and every sent upload, with a button that
 * withdraws consent.
 *
 * After a withdrawal the element dispatches the event "withdrawn" with a `Withdrawal` as its detail. The page must
 * then store that there is no consent.
 */
export class RapporPanel extends HTMLElement {
  /** Client whose reports are shown, undefined for an empty panel. */
  client: Client | undefined;
  /**
   * Show the present loss and uploads. The panel calls this itself when it gets a client, when the page becomes visible
   * and after a withdrawal; a page calls it after `record` and `flush`.
   */
  refresh(): Promise<void>;
}
