// The default transport: fetch, without cookies, referrer or cache. It goes on when the page ends.

import { ParamsError } from "./errors.js";

const LOOPBACK = ["localhost", "127.0.0.1", "[::1]"];
const LARGEST = 1_000_000; // characters of an answer

/**
 * Send to a collector; ParamsError unless its address is https, or http to this very machine.
 * @param {string} collector an address, or a path of the page's own origin
 * @param {string} [key] for sending, if the collector wants one
 * @returns {import("../index.js").Transport}
 */
export function httpTransport(collector, key) {
  const url = addressOf(collector);
  if (key !== undefined && !/^[!-~]+$/.test(key)) {
    throw new ParamsError("key must be printable ASCII without spaces");
  }
  const headers = {
    "Content-Type": "application/json",
    ...(key !== undefined && { Authorization: `Bearer ${key}` }),
  };
  return {
    async send(body, { signal } = {}) {
      const response = await fetch(url, {
        method: "POST",
        headers,
        body,
        signal,
        keepalive: true,
        cache: "no-store",
        credentials: "omit",
        redirect: "error",
        referrerPolicy: "no-referrer",
      });
      return {
        status: response.status,
        body: (await response.text()).slice(0, LARGEST),
        retryAfter: seconds(response.headers.get("Retry-After")),
      };
    },
  };
}

/** @param {string} collector */
function addressOf(collector) {
  const page = globalThis.location?.href;
  let url;
  try {
    url = new URL(`${String(collector).replace(/\/+$/, "")}/v1/reports`, page);
  } catch {
    throw new ParamsError("collector must be an https address");
  }
  const { protocol, hostname, username, password } = url;
  const isLocal = protocol === "http:" && LOOPBACK.includes(hostname);
  if (!(protocol === "https:" || isLocal) || username || password || /[?#]/.test(collector)) {
    throw new ParamsError(
      "collector must be an https address (http only to localhost) without user, ? and #",
    );
  }
  return url.href;
}

/**
 * Read Retry-After (RFC 9110 section 10.2.3), seconds or a date, as seconds.
 * @param {string | null} text
 */
function seconds(text) {
  if (text === null) return undefined;
  if (/^\s*\d+\s*$/.test(text)) return Number(text);
  const moment = Date.parse(text);
  return moment === moment ? Math.max((moment - Date.now()) / 1000, 0) : undefined;
}
