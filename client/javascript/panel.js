// <rappor-panel>: an element that shows a person what this browser reports, with a button that withdraws consent.
//
// The element shows whether the client is on, the privacy loss so far, the numbers of pending and of queued reports, the privacy notice of each
// metric, and every upload with the bytes that were sent. A page passes its client to the element. It may do so before
// the module of the element is loaded:
//
//     document.querySelector("rappor-panel").client = client;
//
// The panel refreshes itself when the page is shown and after a withdrawal. After record() and flush() the page must call
// `refresh`. A withdrawal dispatches the event "withdrawn". The page must then store that there is no consent.

/** @typedef {import("./index.js").Client} Client */
/** @typedef {import("./index.js").PrivacySpent} PrivacySpent */
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
  /* On a phone the bytes have a line of their own. In a column beside the others they would be five letters wide. */
  @media (max-width: 40rem) {
    table, caption, thead, tbody { display: block; }
    tr { display: grid; grid-template-columns: 6.5rem 1fr 6.5rem; border-top: 1px solid GrayText; }
    th, td { border-top: none; overflow-wrap: anywhere; }
    th:last-child, td:last-child { grid-column: 1 / -1; padding-top: 0; }
  }
  button { font: inherit; padding: 0.5rem 1rem; margin-block: 1rem 0.25rem; }
`);

/** The element <rappor-panel>. panel.d.ts has the public names. */
export class RapporPanel extends HTMLElement {
  /** @type {Client | undefined} */
  #client;
  #state = createElement("p", {});
  #loss = createElement("p", {});
  #sent = createElement("div", {});
  #withdrawButton = createElement("button", { type: "button" }, "Stop and erase");
  #hasRemains = false; // a withdrawal could not erase everything, so the button stays for another attempt
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
    this.#hasRemains = false;
    this.#status.textContent = "";
    this.shadowRoot?.replaceChildren(...(client ? [this.#createSection(client)] : []));
    this.refresh();
  }

  /** Show the present loss and uploads. Notices that are open stay open, and the focus stays where it is. */
  async refresh() {
    const client = this.#client;
    if (!client) return;
    const [sent, spent, queued, pending] = await Promise.all([
      client.sentUploads(),
      client.privacySpent(),
      client.queuedCount(),
      client.pendingCount(),
    ]);
    if (client !== this.#client) return; // the page has set another client meanwhile
    const { disabledReason, isEnabled } = client;
    this.#state.textContent = describeState(isEnabled, disabledReason);
    // Without consent there is nothing to stop. A disabled client may have stored reports before.
    this.#withdrawButton.hidden = !isEnabled && !disabledReason && !this.#hasRemains;
    // The store of a disabled client cannot be read, so its numbers would be 0, which may be false.
    this.#loss.textContent = disabledReason ? UNKNOWN_LOSS : describeLoss(spent, queued, pending);
    const nothing = disabledReason
      ? "The record of sent uploads cannot be read."
      : "This browser has no record of anything sent.";
    this.#sent.replaceChildren(sent.length ? createTable(sent) : createElement("p", {}, nothing));
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
      this.#state,
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
    this.#hasRemains = !withdrawal?.done;
    await this.refresh();
    this.#status.textContent = withdrawal?.done
      ? "Stopped. This browser has erased everything but the reserved nats. What was sent cannot be taken back."
      : `Stopped, but this could not be erased: ${withdrawal?.left.join(", ")}.`;
    this.#status.tabIndex = -1; // focusable by a program: the button that had the focus is hidden
    this.#status.focus();
    this.dispatchEvent(new CustomEvent("withdrawn", { detail: withdrawal, bubbles: true, composed: true }));
  }
}

customElements.define("rappor-panel", RapporPanel);

const UNKNOWN_LOSS = "No limit of the privacy loss so far is known.";

/**
 * Return a sentence that says whether the client records and sends, and why it does not.
 * @param {boolean} isEnabled
 * @param {string | undefined} disabledReason
 */
function describeState(isEnabled, disabledReason) {
  if (disabledReason) return `Reports are off, because the client does not work: ${disabledReason}.`;
  return isEnabled ? "Reports are on." : "Reports are off: there is no consent.";
}

/**
 * Return sentences about the privacy loss, the pending and queued reports, and the reserved nats. If an observer gave a
 * statement about the value a probability of 50 % before, then after all reports he gives it at most the probability
 * 1 / (1 + e^-nats) (Bayes' theorem).
 *
 * An erasure leaves the reserved nats only. Without their sentence the loss of 0.00 after an erasure would read as if
 * the browser had sent nothing.
 *
 * A person who has just agreed has one pending report and nothing else. Without its sentence the panel would read as if
 * the browser had recorded nothing.
 * @param {PrivacySpent} spent
 * @param {number} queued
 * @param {number} pending
 */
function describeLoss({ nats, reserved }, queued, pending) {
  // The largest probability after all reports, in per cent with one decimal, rounded up.
  const sure = Math.ceil(1000 / (1 + Math.exp(-nats))) / 10;
  const years = Object.entries(reserved).map(([year, sum]) => {
    const limit = Number.isFinite(sum) ? sum.toFixed(2) : "unknown"; // infinite if the state of the device was lost
    return ` Reserved for ${year}: epsilon = ${limit}. This limits all reports of the year, also those before an erasure.`;
  });
  // The loss is infinite if the store does not respond, or if a metric has no privacy guarantee. Once the text was
  // "at most 100 % sure (epsilon = Infinity)".
  const loss = Number.isFinite(nats)
    ? `Somebody who thought it 50 % likely that this browser has a certain value is at most ${sure} % sure ` +
      `after all reports sent so far (privacy loss: epsilon = ${nats.toFixed(2)}).`
    : UNKNOWN_LOSS;
  return (
    `${loss} ` +
    (pending ? `${countReports(pending)} recorded, and may change until the day or week is over. ` : "") +
    `${countReports(queued)} waiting to be sent.` +
    years.join("")
  );
}

/**
 * Return a number of reports with its verb: "1 report is".
 * @param {number} n
 */
function countReports(n) {
  return n === 1 ? "1 report is" : `${n} reports are`;
}

/**
 * Create a table of sent uploads.
 * @param {SentUpload[]} sent
 */
function createTable(sent) {
  const head = ["Day (UTC)", "Metric", "Result", "Bytes sent"];
  const rows = sent.map(({ day, metric, status, body }) =>
    createElement(
      "tr",
      { role: "row" },
      createElement("td", { role: "cell" }, day),
      createElement("th", { role: "rowheader", scope: "row" }, metric),
      createElement("td", { role: "cell" }, status),
      createElement("td", { role: "cell" }, createElement("pre", {}, body)),
    ),
  );
  const columns = head.map((text) => createElement("th", { role: "columnheader", scope: "col" }, text));
  // The elements have these roles already. But some browsers drop the roles of a table that is not laid out as a table, as
  // on a phone.
  return createElement(
    "table",
    { role: "table" },
    createElement("caption", {}, "Each upload contains one report, with its noise."),
    createElement("thead", { role: "rowgroup" }, createElement("tr", { role: "row" }, ...columns)),
    createElement("tbody", { role: "rowgroup" }, ...rows),
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
