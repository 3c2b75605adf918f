// The default transport: uploads by fetch, without cookies and referrer.
//
// A request has `keepalive`, so it continues after its page has ended. A transport of the host program replaces this
// one by the option `transport` of Client.open.

import { ParamsError } from "./errors.js";

const LOOPBACK = ["localhost", "127.0.0.1", "[::1]"];
const MAX_RESPONSE_BYTES = 1_000_000; // limits the memory; a response to one report has some hundred bytes

/**
 * Return a transport to a collector.
 * @param {string} collector an https address, an http address of this machine, or a path of the page's own origin
 * @param {string} [uploadKey] key that the collector requires for uploads
 * @returns {import("../index.js").Transport}
 * @throws {ParamsError} the address is another one, or has a user, a query or a fragment
 */
export function httpTransport(collector, uploadKey) {
  const url = `${readAddress(collector)}/v1/reports`;
  const headers = new Headers({ "Content-Type": "application/json" });
  if (uploadKey) headers.set("Authorization", `Bearer ${uploadKey}`); // raises for a key that no header can hold
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
 * Read the body of a response, and stop after MAX_RESPONSE_BYTES. A response that is cut is no valid JSON, so the
 * upload counts as failed.
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
 * Return the address of a collector without its endpoint and without a slash at the end.
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
      // People also pass the address of the endpoint. Without the cut every upload would get a 404.
      return href.replace(/\/+$/, "").replace(/\/v1\/reports$/, "").replace(/\/+$/, "");
    }
  } catch {
    // URL raises for a text that is no address
  }
  throw new ParamsError("collector must be of https or of localhost, without user, ? and #");
}

/**
 * Return the seconds of a Retry-After header (RFC 9110 section 10.2.3), which has a number of seconds or a date. Return
 * 0 without a header, and NaN for any other text; the uploader reads NaN as 0.
 * @param {string | null} text
 */
function readSeconds(text) {
  const n = Number(text); // 0 for null
  if (n >= 0) return n;
  // HTTP dates are UTC. The asctime format has no zone, and Date.parse would read it as local time.
  const date = String(text).trim();
  const hasZone = /[a-z]$|[+-]\d{4}$/i.test(date);
  return (Date.parse(hasZone ? date : `${date} GMT`) - Date.now()) / 1000;
}
