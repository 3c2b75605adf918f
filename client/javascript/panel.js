// <rappor-panel>: an element that shows a person what this browser reports, with a button that withdraws consent.
//
// It shows the privacy loss so far, the privacy notice of each metric, and every upload with the bytes that were sent.
// A page passes its client to the element, also before the module of the element is loaded:
//
//     document.querySelector("rappor-panel").client = client;
//
// The panel is current when the page is shown and after a withdrawal. After record() and flush() the page calls
// `refresh`. A withdrawal dispatches the event "withdrawn", upon which the page must store that there is no consent.

/** @typedef {import("./index.js").Client} Client */
/** @typedef {import("./index.js").SentUpload} SentUpload */

const STYLE = new CSSStyleSheet(); // no style element, which the content security policy of a page may forbid
STYLE.replaceSync(`
  :host { display: block; font: 1rem/1.5 system-ui, sans-serif; color: CanvasText; background: Canvas; }
  h2 { font-size: 1.25rem; margin: 0 0 0.5rem; }
  h3 { font-size: 1rem; margin: 1rem 0 0.25rem; }
  table { border-collapse: collapse; width: 100%; }
  caption { text-align: start; padding-block: 0.25rem; }
  th, td { text-align: start; vertical-align: top; padding: 0.25rem 0.75rem 0.25rem 0; border-top: 1px solid GrayText; }
  td:first-child { white-space: nowrap; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0.25rem 0; font-size: 0.875rem; }
  button { font: inherit; padding: 0.5rem 1rem; margin-block: 1rem 0.25rem; }
`);

/** The element <rappor-panel>. panel.d.ts has the public names. */
export class RapporPanel extends HTMLElement {
  /** @type {Client | undefined} */
  #client;
  #loss = createElement("p", {});
  #sent = createElement("div", {});
  #withdrawButton = createElement("button", { type: "button" }, "Stop and erase");
  #status = createElement("p", { role: "status" }); // screen readers read its text when it changes
  #onVisible = () => {
    // Another tab may have sent a report or withdrawn consent meanwhile.
    if (document.visibilityState === "visible") this.refresh();
  };

  constructor() {
    super();
    this.attachShadow({ mode: "open" }).adoptedStyleSheets = [STYLE];
    this.#withdrawButton.addEventListener("click", () => this.#withdraw());
  }

  connectedCallback() {
    if (Object.hasOwn(this, "client")) {
      // The page set the property before the module of this element was loaded, and the plain property hides the
      // setter of this class.
      const { client } = this;
      delete this.client;
      this.client = client;
    }
    document.addEventListener("visibilitychange", this.#onVisible);
  }

  disconnectedCallback() {
    document.removeEventListener("visibilitychange", this.#onVisible);
  }

  /** The client whose reports are shown, undefined for an empty panel. */
  get client() {
    return this.#client;
  }

  set client(client) {
    this.#client = client;
    this.#withdrawButton.hidden = false;
    this.#status.textContent = "";
    this.shadowRoot?.replaceChildren(...(client ? [this.#createSection(client)] : []));
    this.refresh();
  }

  /** Show the present loss and uploads. Notices that are open stay open, and the focus stays where it is. */
  async refresh() {
    const client = this.#client;
    if (!client) return;
    const [sent, spent, queued] = await Promise.all([client.sentUploads(), client.privacySpent(), client.queuedCount()]);
    if (client !== this.#client) return; // the page has set another client meanwhile
    this.#loss.textContent = describeLoss(spent.nats, queued);
    this.#sent.replaceChildren(
      sent.length ? createTable(sent) : createElement("p", {}, "This browser has no record of anything sent."),
    );
  }

  /**
   * Create the content of the panel, with the notices of the client's metrics.
   * @param {Client} client
   */
  #createSection(client) {
    return createElement(
      "section",
      { "aria-labelledby": "title" },
      createElement("h2", { id: "title" }, "What this browser reports"),
      this.#loss,
      createElement("h3", {}, "What is collected"),
      ...[...client.metrics.values()].map(({ name, description, notice }) =>
        createElement("details", {}, createElement("summary", {}, `${description} (${name})`), createElement("pre", {}, notice)),
      ),
      createElement("h3", {}, "What was sent"),
      this.#sent,
      this.#withdrawButton,
      this.#status,
    );
  }

  /** Withdraw consent, and show what was erased and what could not be erased. */
  async #withdraw() {
    const withdrawal = await this.#client?.withdraw();
    this.#withdrawButton.hidden = withdrawal?.done ?? false;
    await this.refresh();
    this.#status.textContent = withdrawal?.done
      ? "Stopped. This browser has erased everything it kept. What was sent cannot be taken back."
      : `Stopped, but this could not be erased: ${withdrawal?.left.join(", ")}.`;
    this.#status.tabIndex = -1; // focusable by a program: the button that had the focus is hidden
    this.#status.focus();
    this.dispatchEvent(new CustomEvent("withdrawn", { detail: withdrawal, bubbles: true, composed: true }));
  }
}

customElements.define("rappor-panel", RapporPanel);

/**
 * Return two sentences about the privacy loss and the queued reports. An observer who thought some statement about the
 * value 50 % likely has afterwards the probability 1 / (1 + e^-nats) (Bayes' theorem).
 * @param {number} nats
 * @param {number} queued
 */
function describeLoss(nats, queued) {
  // In per cent with one decimal, rounded up.
  const sure = Math.ceil(1000 / (1 + Math.exp(-nats))) / 10;
  const reports = queued === 1 ? "1 report is" : `${queued} reports are`;
  return (
    `Somebody who thought it 50 % likely that this browser has some value is at most ${sure} % sure ` +
    `after all reports sent so far (privacy loss: epsilon = ${nats.toFixed(2)}). ${reports} waiting to be sent.`
  );
}

/**
 * Create a table of sent uploads.
 * @param {SentUpload[]} sent
 */
function createTable(sent) {
  const head = ["Day (UTC)", "Metric", "Answer", "Bytes sent"];
  const rows = sent.map(({ day, metric, status, body }) =>
    createElement(
      "tr",
      {},
      createElement("td", {}, day),
      createElement("th", { scope: "row" }, metric),
      createElement("td", {}, status),
      createElement("td", {}, createElement("pre", {}, body)),
    ),
  );
  return createElement(
    "table",
    {},
    createElement("caption", {}, "Each upload contains one report, with its noise."),
    createElement("thead", {}, createElement("tr", {}, ...head.map((text) => createElement("th", { scope: "col" }, text)))),
    createElement("tbody", {}, ...rows),
  );
}

/**
 * Create an element of HTML. Texts are appended as text and never read as HTML.
 * @param {string} name
 * @param {Record<string, string>} attributes
 * @param {(string | Node)[]} children
 */
function createElement(name, attributes, ...children) {
  const created = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) created.setAttribute(key, value);
  created.append(...children);
  return created;
}
