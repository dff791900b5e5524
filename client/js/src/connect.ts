import { RlnodeClient, type ClientOptions } from "./client.js";
import type { Decision } from "./decision.js";

/** Where a store or a middleware asks: a client of yours, or the options of one of its own. */
export type Connection = (ClientOptions & { client?: undefined }) | (Partial<ClientOptions> & { client: RlnodeClient });

/** clientOf returns the client, and whether it is its user's own, who has to close it. */
export function clientOf(o: Connection): { client: RlnodeClient; own: boolean } {
  if (!o?.client && !o?.nodes) throw new TypeError("rlnode: nodes, or a client, are wanted");
  return o.client ? { client: o.client, own: false } : { client: new RlnodeClient(o as ClientOptions), own: true };
}

/** storeClientOf is clientOf for a store. Its calls bring their limits, so that onError "local" needs no others. */
export function storeClientOf(o: Connection): { client: RlnodeClient; own: boolean } {
  return clientOf(o?.client ? o : ({ local: first(1, 1000), ...o } as Connection));
}

/**
 * answered throws if no node answered, so that the library's own option for that decides, unless onError is set: the store's, or that of
 * the client that it was given.
 */
export function answered(d: Decision, o: Connection): void {
  if (d.error && !(o.onError ?? o.client?.onError)) throw d.error;
}

/** hitsOf returns a counter's hits and when it ends, in ms. */
export function hitsOf(d: Decision, o: Connection, windowMs: number): { hits: number; ms: number } {
  answered(d, o);
  if (!d.error || d.rule) return { hits: d.used, ms: d.resetAfterMs };
  return { hits: d.allowed ? 1 : Number.MAX_SAFE_INTEGER, ms: windowMs };
}

/** windowOf checks a library's window, an option called `name`. */
export function windowOf(name: string, ms: unknown): number {
  const n = Math.ceil(ms as number);
  if (!(n >= 10 && n <= 366 * 86_400_000)) throw new TypeError(`rlnode: ${name} is ${String(ms)} ms; a window has 10 ms to 366 days`);
  return n;
}

/** first is a window that begins with its first hit, as those of the libraries do. */
export const first = (limit: number, per: number) => ({ limit: Math.max(1, Math.min(Math.floor(limit), Number.MAX_SAFE_INTEGER)), per, from: "first", algorithm: "fixed-window" }) as const; // prettier-ignore
