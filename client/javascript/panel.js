// <rappor-panel>: shows a person the metrics and the sent uploads, with a button that withdraws consent.
// Pass it a client: document.querySelector("rappor-panel").client = client.

/** @typedef {import("./index.js").Client} Client */
/** @typedef {import("./index.js").SentUpload} Sent */

const STYLE = new CSSStyleSheet(); // no style element: a page's policy may forbid those
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

/** The element that shows a person the reports of this browser. */
export class RapporPanel extends HTMLElement {
  /** @type {Client | undefined} */
  #client;
  #loss = element("p", {});
  #sent = element("div", {});
  #stop = element("button", { type: "button" }, "Stop and erase");
  #status = element("p", { role: "status" });
  #onVisible = () => {
    if (document.visibilityState === "visible") this.refresh(); // another tab may have sent or withdrawn
  };

  constructor() {
    super();
    this.attachShadow({ mode: "open" }).adoptedStyleSheets = [STYLE];
    this.#stop.addEventListener("click", () => this.#withdraw());
  }

  connectedCallback() {
    if (Object.hasOwn(this, "client")) {
      const { client } = this; // the page set the property before the module of this element was loaded
      delete this.client;
      this.client = client;
    }
    document.addEventListener("visibilitychange", this.#onVisible);
  }

  disconnectedCallback() {
    document.removeEventListener("visibilitychange", this.#onVisible);
  }

  get client() {
    return this.#client;
  }

  set client(client) {
    this.#client = client;
    this.#stop.hidden = false;
    this.#status.textContent = "";
    this.shadowRoot?.replaceChildren(...(client ? [this.#section(client)] : []));
    this.refresh();
  }

  /** Show the current loss and uploads. Open notices stay open, and the focus stays where it is. */
  async refresh() {
    const client = this.#client;
    if (!client) return;
    const [sent, spent, queued] = await Promise.all([client.sentUploads(), client.privacySpent(), client.queuedCount()]);
    if (client !== this.#client) return; // the page has set another client meanwhile
    this.#loss.textContent = lossText(spent.nats, queued);
    this.#sent.replaceChildren(
      sent.length ? table(sent) : element("p", {}, "This browser has no record of anything sent."),
    );
  }

  /** @param {Client} client */
  #section(client) {
    return element(
      "section",
      { "aria-labelledby": "title" },
      element("h2", { id: "title" }, "What this browser reports"),
      this.#loss,
      element("h3", {}, "What is collected"),
      ...[...client.metrics.values()].map(({ name, description, notice }) =>
        element("details", {}, element("summary", {}, `${description} (${name})`), element("pre", {}, notice)),
      ),
      element("h3", {}, "What was sent"),
      this.#sent,
      this.#stop,
      this.#status,
    );
  }

  async #withdraw() {
    const withdrawal = await this.#client?.withdraw();
    this.#stop.hidden = withdrawal?.done ?? false;
    await this.refresh();
    this.#status.textContent = withdrawal?.done
      ? "Stopped. This browser has erased everything it kept. What was sent cannot be taken back."
      : `Stopped, but this could not be erased: ${withdrawal?.left.join(", ")}.`;
    this.#status.tabIndex = -1;
    this.#status.focus();
    this.dispatchEvent(new CustomEvent("withdrawn", { detail: withdrawal, bubbles: true, composed: true }));
  }
}

customElements.define("rappor-panel", RapporPanel);

/**
 * Return a sentence about the privacy loss and the queued reports.
 * @param {number} nats
 * @param {number} queued
 */
function lossText(nats, queued) {
  const sure = Math.ceil(1000 / (1 + Math.exp(-nats))) / 10;
  const reports = queued === 1 ? "1 report is" : `${queued} reports are`;
  return (
    `Somebody who thought it 50 % likely that this browser has some value is at most ${sure} % sure ` +
    `after all reports sent so far (privacy loss: epsilon = ${nats.toFixed(2)}). ${reports} waiting to be sent.`
  );
}

/** @param {SentUpload[]} sent */
function table(sent) {
  const head = ["Day (UTC)", "Metric", "Answer", "Bytes sent"];
  const rows = sent.map(({ day, metric, status, body }) =>
    element(
      "tr",
      {},
      element("td", {}, day),
      element("th", { scope: "row" }, metric),
      element("td", {}, status),
      element("td", {}, element("pre", {}, body)),
    ),
  );
  return element(
    "table",
    {},
    element("caption", {}, "Each upload contains one report, with its noise."),
    element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...rows),
  );
}

/**
 * @param {string} name
 * @param {Record<string, string>} attributes
 * @param {(string | Node)[]} children
 */
function element(name, attributes, ...children) {
  const created = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) created.setAttribute(key, value);
  created.append(...children);
  return created;
}
