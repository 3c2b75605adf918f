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
  const { href, protocol, hostname, username, search, hash } = new URL(
    `${collector.replace(/\/+$/, "")}/v1/reports`,
    globalThis.location?.href,
  );
  const isLocal = protocol === "http:" && LOOPBACK.includes(hostname);
  if (!(protocol === "https:" || isLocal) || username || search || hash) {
    throw new ParamsError(
      "collector must be an https address (http to localhost), without user, ? and #",
    );
  }
  return href;
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
