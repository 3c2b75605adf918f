// The default transport: uploads by fetch, without cookies and referrer.
//
// A request has `keepalive`, so it continues after its page has ended. A transport of the host program replaces this
// one by the option `transport` of Client.open.

import { ParamsError } from "./errors.js";

/** Names of this machine. Plain http is allowed for them only, because such reports cross no network. */
const LOOPBACK = ["localhost", "127.0.0.1", "[::1]"];
/**
 * Largest number of bytes that are read of a response. A response to one report has some hundred bytes. With a larger
 * number, a wrong or hostile server can fill more of the memory of the page.
 */
const MAX_RESPONSE_BYTES = 1_000_000;

/**
 * Return a transport to a collector.
 * @param {string} collector an https address, an http address of this machine, or a path of the page's own origin
 * @param {string} [uploadKey] key that the collector requires for uploads
 * @returns {import("../index.js").Transport}
 * @throws {ParamsError} the address is of another kind, or has a user, a query or a fragment; or the key has a character
 *   that no header can contain
 */
export function httpTransport(collector, uploadKey = "") {
  const url = `${readAddress(collector)}/v1/reports`;
  const headers = new Headers({ "Content-Type": "application/json" });
  // `headers.set` would raise for such a key, too. But in some browsers the message of that error contains the key, and
  // many pages send messages of errors to other services.
  if (!/^[!-~]*$/.test(uploadKey)) throw new ParamsError("uploadKey must be printable ASCII without spaces");
  if (uploadKey) headers.set("Authorization", `Bearer ${uploadKey}`);
  return {
    async send(body, { signal } = {}) {
      const response = await fetch(url, {
        method: "POST",
        headers,
        body,
        signal,
        keepalive: true,
        credentials: "omit",
        redirect: "error", // a redirection would send the report to somebody else
        referrerPolicy: "no-referrer",
      });
      return {
        status: response.status,
        body: await readText(response),
        retryAfter: readSeconds(response.headers.get("Retry-After")),
      };
    },
  };
}

/**
 * Read the body of a response, and stop after MAX_RESPONSE_BYTES. A response that is cut off is no valid JSON. The upload
 * then counts as failed and is sent again later.
 * @param {Response} response
 */
async function readText({ body }) {
  const reader = body?.getReader();
  const read = [];
  for (let n = 0; n < MAX_RESPONSE_BYTES; ) {
    const { value } = (await reader?.read()) ?? {};
    if (!value) break;
    read.push(value);
    n += value.length;
  }
  reader?.cancel();
  return new Blob(read).text();
}

/**
 * Return the address of a collector without the path of the endpoint and without a slash at the end.
 * @param {string} collector
 */
function readAddress(collector) {
  try {
    const { href, protocol, hostname, origin, pathname } = new URL(
      collector,
      globalThis.location?.href,
    );
    const isLocal = protocol === "http:" && LOOPBACK.includes(hostname);
    if ((protocol === "https:" || isLocal) && href === origin + pathname) {
      // Some programs pass the address of the endpoint, with /v1/reports at the end. The uploads would go to
      // /v1/reports/v1/reports, and get the status 404.
      return href.replace(/\/*(\/v1\/reports)?\/*$/, "");
    }
  } catch {
    // `new URL` raises for a text that is no address. The error below says what is expected.
  }
  throw new ParamsError("collector must be of https or of localhost, without user, ? and #");
}

/**
 * Return the wait that a Retry-After header asks for, in seconds. The header contains a number of seconds or a date
 * (RFC 9110 section 10.2.3). Return 0 without a header, and NaN for any other text. The uploader reads NaN as 0.
 * @param {string | null} text
 */
function readSeconds(text) {
  const n = Number(text); // 0 for null
  if (n >= 0) return n;
  // All HTTP dates are in UTC. The old form "Sun Nov  6 08:49:37 1994" (asctime) has no zone, and Date.parse would read
  // it in the zone of the device.
  const date = String(text).trim();
  const hasZone = /[a-z]$|[+-]\d{4}$/i.test(date);
  return (Date.parse(hasZone ? date : `${date} GMT`) - Date.now()) / 1000;
}
