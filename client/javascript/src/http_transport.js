// The default transport: fetch, without cookies and referrer. It goes on when the page ends.

import { ParamsError } from "./errors.js";

const LOOPBACK = ["localhost", "127.0.0.1", "[::1]"];
const LARGEST = 1_000_000; // bytes of an answer

/**
 * Send to a collector; ParamsError unless its address is https, or http to this very machine.
 * @param {string} collector an address, or a path of the page's own origin
 * @param {string} [key] for sending, if what is at the path wants one
 * @param {string} [path]
 * @returns {import("../index.js").Transport}
 */
export function httpTransport(collector, key, path = "/v1/reports") {
  const url = addressOf(collector) + path;
  const headers = new Headers({ "Content-Type": "application/json" });
  if (key) headers.set("Authorization", `Bearer ${key}`); // it raises for what no header can hold
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
 * Read an answer; what no collector writes is not read to its end.
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
      return href.replace(/\/+$/, "");
    }
  } catch {
    // it is no address at all
  }
  throw new ParamsError("collector must be of https or of localhost, without user, ? and #");
}

/**
 * Read Retry-After (RFC 9110 section 10.2.3), seconds or a date, as seconds: 0 if there is none, NaN
 * if it is neither.
 * @param {string | null} text
 */
function seconds(text) {
  const n = Number(text);
  return n >= 0 ? n : (Date.parse(String(text)) - Date.now()) / 1000;
}
