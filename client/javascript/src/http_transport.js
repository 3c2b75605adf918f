// The default transport: fetch without cookies and referrer. A request continues after its page has ended.

import { ParamsError } from "./errors.js";

const LOOPBACK = ["localhost", "127.0.0.1", "[::1]"];
const LARGEST = 1_000_000; // bytes of a response that are read

/**
 * Return a transport to a collector; ParamsError unless its address is https, or http to localhost.
 * @param {string} collector an address, or a path of the page's own origin
 * @param {string} [uploadKey]
 * @returns {import("../index.js").Transport}
 */
export function httpTransport(collector, uploadKey) {
  const url = `${addressOf(collector)}/v1/reports`;
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
        redirect: "error",
        referrerPolicy: "no-referrer",
      });
      return {
        status: response.status,
        body: await textOf(response),
        retryAfter: seconds(response.headers.get("Retry-After")),
      };
    },
  };
}

/**
 * Read the body of a response, up to a size that no collector exceeds.
 * @param {Response} response
 */
async function textOf({ body }) {
  const reader = body?.getReader();
  const read = [];
  for (let n = 0; n < LARGEST; ) {
    const { value } = (await reader?.read()) ?? {};
    if (!value) break;
    n += read[read.push(value) - 1].length;
  }
  reader?.cancel();
  return new Blob(read).text();
}

/** @param {string} collector */
function addressOf(collector) {
  try {
    const { href, protocol, hostname, origin, pathname } = new URL(
      collector,
      globalThis.location?.href,
    );
    const isLocal = protocol === "http:" && LOOPBACK.includes(hostname);
    if ((protocol === "https:" || isLocal) && href === origin + pathname) {
      // An address of the endpoint names the same collector. Without the cut every upload would get a 404.
      return href.replace(/\/+$/, "").replace(/\/v1\/reports$/, "").replace(/\/+$/, "");
    }
  } catch {
    // URL raises for a text that is no address
  }
  throw new ParamsError("collector must be of https or of localhost, without user, ? and #");
}

/**
 * Return the seconds of a Retry-After header (RFC 9110 section 10.2.3), which has seconds or a date. 0 if
 * there is no header, NaN for any other text.
 * @param {string | null} text
 */
function seconds(text) {
  const n = Number(text);
  if (n >= 0) return n;
  // HTTP dates are UTC, also the asctime format, which has no zone and which Date.parse reads as local.
  const date = String(text).trim();
  const hasZone = /[a-z]$|[+-]\d{4}$/i.test(date);
  return (Date.parse(hasZone ? date : `${date} GMT`) - Date.now()) / 1000;
}
