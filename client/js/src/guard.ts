import { addressOf } from "./address.js";
import type { RlnodeClient } from "./client.js";
import { sleep } from "./clock.js";
import { clientOf, type Connection } from "./connect.js";
import { decide, type Decision } from "./decision.js";
import { RequestError, RlnodeError } from "./errors.js";
import type { Costs, CheckRequest, Value } from "./request.js";
import { Slot } from "./slot.js";

/** Options of a middleware. By default every rule is asked that matches the attributes ip, endpoint and method. */
export type GuardOptions<R> = Connection & {
  /** Ask only this rule. */
  rule?: string;
  /** The subject: a value for each key attribute of `rule`. Attributes are not looked at then. */
  key?: (request: R) => Value | readonly Value[];
  /**
   * What happens to a request whose `key`, or a part of it, is absent (undefined, null or ""), as for callers without an API key:
   * "refuse" (unless said) answers 400 with the code "missing-key", "error" lets the framework's handler of errors answer, "allow" lets
   * it pass without a check. Any other text, such as "anonymous", is used in place of what is absent.
   */
  missingKey?: "refuse" | "error" | "allow" | (string & {});
  /** The attributes that rules match by, in place of ip, endpoint and method. What is undefined, null or "" is absent. */
  attributes?: (request: R) => Record<string, Value>;
  /** The caller's address, in place of the framework's. */
  ip?: (request: R) => string;
  /** What the request costs, in requests or by unit; else what the rules say, or 1. */
  cost?: (request: R) => number | Costs;
  /** Let a request pass without a check. */
  skip?: (request: R) => boolean | Promise<boolean>;
  /** Hold a delayed request no longer than this (30,000); one with a longer delay is refused. 0: hold none, and let them pass. */
  maxDelayMs?: number;
  /** Hold no more requests at once (10,000); further ones are refused. */
  maxHeld?: number;
  /** false: no rate headers but Retry-After. */
  headers?: boolean;
  /**
   * Acquire slots in place of a check, and hold them for the length of the response: they are released when it has been sent, when it
   * fails, and when the caller hangs up. The decision is then a Slot, whose `signal` ends if they are lost, too.
   */
  slots?: boolean;
  /** For how long a slot is held unless it is renewed; as long as the rules say, unless said. */
  slotTtlMs?: number;
};

/** What is known of a request; ip is undefined if its framework does not know it. */
export interface Seen {
  ip: string | undefined;
  endpoint: string;
  method: string;
}

/** A request passes, or is answered with this. */
export interface Verdict {
  decision: Decision | undefined;
  /** To be released when the response is over. */
  slot?: Slot;
  headers: Record<string, string>;
  refusal?: { status: number; body: string };
}

const pass: Verdict = { decision: undefined, headers: {} };

const problemHeaders = { "Content-Type": "application/problem+json", "Cache-Control": "no-store" };

/** missing answers a request that has no key. */
const missing: Verdict = {
  decision: undefined, headers: problemHeaders,
  refusal: {
    status: 400,
    body: JSON.stringify({ type: "about:blank", title: "A required field is missing", status: 400, code: "missing-key", detail: "This request does not say whose it is." }),
  },
}; // prettier-ignore

/** complete returns a key that lacks nothing, or what to do with a request whose key does. */
function complete(key: Value | readonly Value[], instead = "refuse"): { values: Value | readonly Value[] } | "refuse" | "allow" {
  const absent = (value: Value | readonly Value[]) => value === undefined || value === null || value === "";
  const list = Array.isArray(key) ? Array.from(key as readonly Value[]) : undefined;
  const at = list ? list.findIndex(absent) : -1;
  if (list ? at < 0 : !absent(key)) return { values: key };
  if (instead === "refuse" || instead === "allow") return instead;
  if (instead === "error") throw new RequestError(`key${list ? `[${at}]` : ""} is missing`, "missing-key");
  return { values: list ? list.map((value) => (absent(value) ? instead : value)) : instead };
}

/** Guard decides requests by the server's rules. */
export class Guard<R> {
  readonly client: RlnodeClient;
  #held = 0;

  constructor(private readonly o: GuardOptions<R>) {
    if (o?.key && !o.rule) throw new TypeError("rlnode: key needs rule");
    this.client = clientOf(o).client;
    if (o.rule) this.client.expectRules(o.rule);
  }

  /** @param ends what says when the request is over; a slot is released then. */
  async decide(request: R, see: (request: R) => Seen, ends: () => Ends): Promise<Verdict> {
    const o = this.o;
    if (await o.skip?.(request)) return pass;
    const q: CheckRequest = { headers: o.headers !== false };
    if (o.rule) q.rule = o.rule;
    if (o.key) {
      const key = complete(o.key(request), o.missingKey);
      if (key === "allow") return pass;
      if (key === "refuse") return missing;
      q.key = key.values;
    } else q.attributes = o.attributes?.(request) ?? this.#attributes(request, see);
    const cost = o.cost?.(request);
    if (typeof cost === "number") q.cost = cost;
    else if (cost) q.costs = cost;
    const over = o.slots ? ends() : {}; // a platform may tell only those who asked before
    const d = await this.#check(q);
    const slot = d instanceof Slot && d.allowed ? d : undefined;
    if (slot) releaseAfter(over, slot);
    const v = await this.#verdict(d, slot);
    if (v.refusal) void slot?.release();
    else if (slot) v.slot = slot;
    return v;
  }

  /** check refuses what nodes, or the client, can't decide. What was thrown by the user's functions is not caught. */
  async #check(q: CheckRequest): Promise<Decision> {
    try {
      if (!this.o.slots) return await this.client.check(q);
      return await this.client.acquire(this.o.slotTtlMs ? { ...q, ttlMs: this.o.slotTtlMs } : q);
    } catch (e) {
      if (!(e instanceof RlnodeError)) throw e;
      this.client.complain(e);
      return decide({ allowed: false, reason: "The rate limiter can't decide this.", error: e });
    }
  }

  #attributes(request: R, see: (request: R) => Seen): Record<string, string> {
    const { ip, endpoint, method } = see(request);
    const address = this.o.ip?.(request) ?? ip;
    // Rules by address would not apply, and let everybody pass.
    if (!address) throw new TypeError("rlnode: the caller's address is not known here: give the option ip, or attributes");
    return { ip: addressOf(address) ?? address, endpoint, method };
  }

  async #verdict(d: Decision, slot: Slot | undefined): Promise<Verdict> {
    const { maxDelayMs = 30_000, maxHeld = 10_000 } = this.o;
    if (d.allowed && d.delayMs > 0 && maxDelayMs > 0) {
      if (d.delayMs > maxDelayMs || this.#held >= maxHeld) {
        d = decide({ ...d, allowed: false, retryAfterMs: d.delayMs });
      } else {
        this.#held++;
        await sleep(d.delayMs, slot?.signal).catch(() => undefined);
        this.#held--;
      }
    }
    // The work may not begin without its slot.
    if (slot?.signal.aborted) d = decide({ allowed: false, reason: "The slot is lost.", error: slot.signal.reason as RlnodeError });
    return d.allowed ? { decision: d, headers: d.headers } : refuse(d);
  }
}

/** The part of Node's response that says when it is over: when all is sent, and when the connection is cut. */
export interface Ending {
  once?(event: "close", f: () => void): unknown;
  closed?: boolean;
  destroyed?: boolean;
}

/** What says when a request is over: Node's response, or the signal of a Request. */
export interface Ends {
  response?: Ending | undefined;
  signal?: AbortSignal | undefined;
}

/** releaseAfter releases a slot when a request is over. */
function releaseAfter({ response, signal }: Ends, slot: Slot): void {
  const release = () => void slot.release();
  response?.once?.("close", release);
  signal?.addEventListener("abort", release);
  const closed = response && (!response.once || response.closed || response.destroyed);
  if (closed || signal?.aborted) release(); // the caller hung up meanwhile
}

/** refuse answers as the rule's refusal says, or with application/problem+json: 429, 403 where it is denied, 503 where no node decided. */
function refuse(d: Decision): Verdict {
  let p: object = {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded", title: "Request cannot be satisfied as assigned quota has been exceeded",
    status: 429, code: d.code || "rate-limited", detail: d.reason, "violated-policies": d.violated,
  }; // prettier-ignore
  let status = 429;
  const headers: Record<string, string> = { ...d.headers, ...problemHeaders };
  if (d.denied) p = { type: "about:blank", title: "The rules deny this", status: (status = 403), code: "denied", detail: d.reason };
  else if (d.decidedBy === "error") {
    p = { type: "about:blank", title: "Service Unavailable", status: (status = 503), detail: d.reason };
    headers["Retry-After"] = "1";
  }
  const own = d.refusal;
  if (!own) return { decision: d, headers, refusal: { status, body: JSON.stringify(p) } };

  const { status: asked = 0, body } = own;
  if ((asked >= 400 && asked < 500) || asked === 503) status = asked;
  Object.assign(headers, own.headers);
  if (body != null) {
    const isText = typeof body === "string";
    headers["Content-Type"] = isText ? "text/plain; charset=utf-8" : "application/json";
    return { decision: d, headers, refusal: { status, body: isText ? body : JSON.stringify(body) } };
  }
  const { type, title, detail, code } = own;
  p = { ...p, ...(type && { type }), ...(title && { title }), status, ...(detail && { detail }), ...(code && { code }), "violated-policies": undefined };
  return { decision: d, headers, refusal: { status, body: JSON.stringify(p) } };
}

/**
 * forwarded returns the address that the outermost of `hops` trusted proxies saw: the hops-th from the right of X-Forwarded-For. What
 * stands further left anyone can write. undefined: that is no address.
 */
export function forwarded(header: string | null | undefined, hops: number): string | undefined {
  const list = header?.split(",") ?? [];
  return hops > 0 && list.length ? addressOf(list[Math.max(0, list.length - hops)]!) : undefined;
}
