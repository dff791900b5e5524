import { RequestError } from "./errors.js";

/** Costs per unit, such as `{ tokens: 900 }`. */
export type Costs = Record<string, number>;

/** What a check does with its cost: take it if it fits, take nothing, or take it in any case. */
export type Mode = "check" | "peek" | "count" | "at_most";

/** A limit that comes with the call; the fields and defaults are those of a limit in the rules file. */
export interface Limit {
  /** The capacity, 1 to 2^53 - 1. */
  limit: number;
  /** The window: "10s", "1m", "7d", or "day" of the calendar; or milliseconds. */
  per?: string | number;
  /** With the algorithm "concurrency", in place of `per`: how long a slot is held unless it is renewed, as "30s", or milliseconds. */
  ttl?: string | number;
  algorithm?: "sliding-window" | "sliding-window-log" | "fixed-window" | "token-bucket" | "leaky-bucket" | "concurrency";
  burst?: number;
  /** What is counted; "requests" unless said. */
  unit?: string;
  name?: string;
  tz?: string;
  /** "first": a fixed window that begins with its first hit. */
  from?: "clock" | "first";
}

/**
 * A value of an attribute or of a key: text, or an integer, which counts as its digits (7 and "7" are one subject). Beyond 2^53 - 1 an
 * integer has to be a bigint. undefined, null and "" are absent: rules with such an attribute in their key don't apply, and nodes refuse
 * a key that lacks a value with the code "missing-key".
 */
export type Value = string | number | bigint | null | undefined;

/** One subject: a rule's, by rule and key, or one that brings its limits, by namespace and key. */
export interface Target {
  rule?: string;
  namespace?: string;
  /** A value for each key attribute of the rule; any 1 to 32 values with `limits`, of which "" is one. */
  key?: Value | readonly Value[];
  limits?: readonly Limit[];
}

/** A subject that brings its limits. */
export interface Subject {
  namespace?: string;
  key: Value | readonly Value[];
  limits: readonly Limit[];
  /** "exact" asks the subject's owner each time; else nodes spend leases. */
  consistency?: "exact" | "hybrid";
  /** Count and report, and never refuse. */
  shadow?: boolean;
  mode?: Mode;
  cost?: number;
  costs?: Costs;
}

/** A check: by rule and key, by attributes, by key and limits, or of up to 16 subjects that bring their limits. */
export interface CheckRequest extends Target {
  attributes?: Readonly<Record<string, Value>>;
  subjects?: readonly Subject[];
  consistency?: "exact" | "hybrid";
  shadow?: boolean;
  mode?: Mode;
  /** In requests; 1, or what the rule's cost table says, if there is none. */
  cost?: number;
  costs?: Costs;
  /** Fill in `limits` of the decision. */
  detail?: boolean;
  /** Fill in the rate headers of the decision, for the end user. */
  headers?: boolean;
  /** Resolve when the turn of a delayed check has come. */
  wait?: boolean;
  /** For counts: within a minute, calls with the same id are decided once. */
  requestId?: string;
}

/** A check whose cost is an estimate, to be settled within `ttlMs` (a minute unless said). */
export interface ReserveRequest extends Omit<CheckRequest, "mode"> {
  ttlMs?: number;
  /** What becomes of it if nobody settles it in time: it stays charged, comes back, or these costs stay charged. */
  onExpiry?: "charge" | "refund" | { costs: Costs };
}

/** A check that takes slots. Its `wait` is for a free one. */
export interface AcquireRequest extends Omit<CheckRequest, "mode"> {
  /** How many slots of each limit; the cost in its unit unless said, which is 1 for requests. */
  n?: number;
  /** For how long a slot is held unless it is renewed; as long as the limits say, unless said. */
  ttlMs?: number;
  /** Who holds it, for operators: at most 32 bytes. The token's name, or the caller's address, unless said. */
  who?: string;
}

/** A penalty, or a reward if it is below 0. */
export interface AdjustRequest extends Target {
  cost?: number;
  costs?: Costs;
  /** The only limit that it concerns, as `detail` names it; else all. */
  limitName?: string;
  /** Correct the bill of a rule with usage: monthly, too, by what is applied. */
  bill?: boolean;
  /** By which nodes know a repeated call; one is made up if there is none. null: no id, and no repetition. */
  requestId?: string | null;
}

export interface ResetRequest extends Target {
  /** The only limit that is made fresh, as `detail` names it, and no block is lifted; else all of it. */
  limitName?: string;
  requestId?: string;
}

export type Fields = Record<string, any>; // as they come and as they are sent

const most = Number.MAX_SAFE_INTEGER;
const maxValue = 1024; // bytes of a key or attribute value
const maxBody = 64 << 10; // bytes of a check
const utf8 = new TextEncoder();

/** need throws if no node could decide the call. */
function need(ok: unknown, what: string): void {
  if (!ok) throw new RequestError(what);
}

/** textOf returns what a value of a key or an attribute counts as; undefined if it is absent. */
function textOf(value: unknown, what: string): string | undefined {
  if (value === undefined || value === null) return undefined;
  if (typeof value === "string") return fit(value);
  if (typeof value === "bigint" || (Number.isSafeInteger(value) && !Object.is(value, -0))) return fit(String(value));
  const shown = typeof value === "number" ? (Object.is(value, -0) ? "-0" : value) : Array.isArray(value) ? "an array" : "of the type " + typeof value;
  throw new RequestError(`${what} is ${shown}; text is wanted, or an integer, beyond 2^53 - 1 as a bigint`);
}

/** keyOf returns a key as nodes expect it. What is absent is for the node to refuse, since only it knows the rule. */
function keyOf(key: unknown, inline: boolean): unknown {
  const one = (value: unknown, what: string) => {
    const text = textOf(value, what);
    need(text !== undefined || !inline, what + " is missing");
    return text ?? null;
  };
  if (!Array.isArray(key)) return one(key, "key");
  return key.length === 1 ? one(key[0], "key[0]") : Array.from(key, (value, i) => one(value, `key[${i}]`));
}

/** attributesOf returns the attributes that are there. */
function attributesOf(attributes: unknown): Record<string, string> {
  const plain = typeof attributes === "object" && !Array.isArray(attributes) && !(attributes instanceof Map);
  need(plain, "attributes: an object of values by name is wanted");
  const named = Object.entries(attributes as Fields).map(([name, value]) => [name.toWellFormed(), textOf(value, "attributes." + name)]);
  return Object.fromEntries(named.filter(([, text]) => text)); // "" is absent, too
}

/**
 * fit turns a value into one that a node accepts: of one over 1,024 bytes the first and the last 512 are kept, since rules match by
 * either.
 */
export function fit(value: string): string {
  const text = value.toWellFormed();
  if (text.length * 3 <= maxValue) return text;
  const bytes = utf8.encode(text);
  if (bytes.length <= maxValue) return text;
  const inside = (i: number) => (bytes[i]! & 0xc0) === 0x80; // a character
  let head = maxValue / 2;
  let tail = bytes.length - head;
  while (inside(head)) head--;
  while (inside(tail)) tail++;
  const decode = (b: Uint8Array) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(b);
  return decode(bytes.subarray(0, head)) + decode(bytes.subarray(tail));
}

/** whole returns an amount, at most the largest. */
function whole(value: unknown, least: number, what: string): number {
  const n = typeof value === "number" ? Math.min(value, most) : NaN;
  need(Number.isInteger(n) && n >= least, `${what}: ${String(value)} is no whole number of at least ${least}`);
  return n;
}

/** costsOf returns the costs of an adjustment if they may be below 0. */
function costsOf(costs: Costs, least: number): Costs {
  need(typeof costs === "object" && !Array.isArray(costs), "costs: an object of amounts by unit is wanted");
  const out: Costs = {};
  for (const unit in costs) {
    out[unit] = whole(costs[unit], least, "costs." + unit);
    need(out[unit] || !least, "costs: 0 changes nothing");
  }
  return out;
}

/** limitOf returns a limit as nodes spell it. */
export function limitOf(given: Fields): Fields {
  need(typeof given === "object" && given, "limits: an object such as { limit: 5, per: '1m' } is wanted");
  const { per, ttl, ...limit } = given;
  whole(limit.limit, 0, "limit");
  need(limit.limit <= most, "limit: too large");
  if (limit.algorithm === "concurrency") {
    need((ttl || limit.ttl_ms) && !per && !limit.per_ms, "ttl: a limit of slots needs it, in place of per");
    return typeof ttl === "number" ? { ...limit, ttl_ms: ttl } : { ...limit, ttl };
  }
  need(per || limit.per_ms, "per: a limit needs its window");
  need(ttl === undefined && limit.ttl_ms === undefined, 'ttl: it is for the algorithm "concurrency"');
  return typeof per === "number" ? { ...limit, per_ms: per } : { ...limit, per };
}

/** fieldsOf returns the fields of a subject, of a check by a rule and of a call about one subject, in the spelling of nodes. */
function fieldsOf(q: Fields, mode?: Mode, least = 0): Fields {
  const { requestId, ttlMs, onExpiry, limitName, headers: _, wait: __, ...out } = q;
  const { key, limits, attributes, namespace } = out;
  if (limits) {
    need(Array.isArray(limits) && limits.length > 0 && limits.length < 9, "limits: 1 to 8 are wanted");
    need(key !== undefined && key !== null, "limits need a key");
    out.limits = limits.map(limitOf);
  }
  need(typeof (out.rule ?? "") === "string", "rule: text is wanted");
  need(typeof (namespace ?? "") === "string", "namespace: text is wanted");
  if (namespace) out.namespace = fit(namespace);
  if (key !== undefined && key !== null) out.key = keyOf(key, !!(limits || namespace));
  else delete out.key;
  if (attributes) out.attributes = attributesOf(attributes);
  if (out.cost !== undefined) out.cost = costsOf({ requests: out.cost }, least).requests;
  if (out.costs) out.costs = costsOf(out.costs, least);
  if (mode) out.mode = mode;
  need(["check", "peek", "count", "at_most", undefined].includes(out.mode), "mode: check, peek, count or at_most is wanted");
  if (out.mode === "check") delete out.mode;
  if (out.mode === "peek" && !limits) {
    delete out.mode;
    out.peek = true; // nodes of older releases know that
  }
  if (requestId != null) {
    need(typeof requestId === "string" && requestId && utf8.encode(requestId).length <= 64, "requestId: 1 to 64 bytes are wanted");
    out.request_id = requestId;
  }
  if (ttlMs !== undefined) out.ttl_ms = whole(ttlMs, 1, "ttlMs");
  if (onExpiry !== undefined) out.on_expiry = onExpiry?.costs ? { costs: costsOf(onExpiry.costs, 0) } : onExpiry;
  if (limitName !== undefined) {
    need(typeof limitName === "string" && limitName, "limitName: text is wanted");
    out.limit_name = limitName;
  }
  need(["boolean", "undefined"].includes(typeof out.bill), "bill: true or false is wanted");
  return out;
}

/** Built is the body of a call, with what its answer is read by. */
export interface Built {
  body: string;
  /** What the body has. */
  fields: Fields;
  /** Some of it is counted even if the answer is no. */
  counts?: boolean;
  /** No batch may carry it: the answer would not tell what was taken, or lack its headers. */
  alone?: boolean;
  /** How long it may take once it is sent, in place of timeoutMs. */
  ms?: number;
}

/** checkBody returns the body of a check, and throws if no node could decide it. */
export function checkBody(request: CheckRequest & { ttlMs?: number }, mode?: Mode): Built {
  const q: Fields = request;
  need(typeof q === "object" && q, "a check is an object");
  const { subjects, limits, rule, attributes } = q;
  const inline = limits || q.namespace || q.consistency || q.shadow;
  let out = fieldsOf(q, subjects ? undefined : mode);
  if (subjects) {
    need(!(inline || rule || attributes || q.key || q.mode || q.cost || q.costs), "subjects exclude rule, key, attributes, limits, mode and costs");
    need(Array.isArray(subjects) && subjects.length > 0 && subjects.length < 17, "subjects: 1 to 16 are wanted");
    need(subjects.every((s: unknown) => typeof s === "object" && s), "subjects: objects are wanted");
    out = { ...out, subjects: subjects.map((s: Fields) => fieldsOf({ ...s, limits: s.limits ?? [] }, mode)) };
  } else {
    need(limits || !inline, "namespace, consistency and shadow need limits");
    need(limits ? !rule && !attributes : rule || attributes, "a rule, attributes or limits are wanted, and limits exclude the others");
    need(!q.key || !attributes, "key and attributes exclude each other");
  }
  const modes: unknown[] = (out.subjects ?? [out]).map((s: Fields) => s.mode);
  const counts = modes.includes("count");
  return { ...bounded(out), counts, alone: q.headers || (counts && modes.some((m) => m !== "count")) };
}

/** acquireBody returns the body of an acquire with an id. */
export function acquireBody(request: AcquireRequest, requestId: string): Built {
  const { n, who, mode, subjects } = request as Fields;
  need(mode === undefined && !(subjects as Subject[] | undefined)?.some?.((s) => s?.mode), "mode: a slot is either held or not");
  if (n !== undefined) whole(n, 1, "n");
  need(who === undefined || (typeof who === "string" && who && utf8.encode(who).length <= 32), "who: 1 to 32 bytes are wanted");
  return checkBody({ ...request, requestId });
}

/** slotBody returns the body of a call about a slot. */
export const slotBody = (slot: string): Built => bounded({ slot });

/** targetBody returns the body of a call about one subject that is no check; `changes`: it needs a cost. */
export function targetBody(request: AdjustRequest, id?: string, changes?: boolean): Built {
  const { rule, namespace, limits, key, cost, costs } = request;
  need(!rule === !!(limits || namespace), "either a rule, or a namespace or limits, are wanted");
  need(rule || key !== undefined, "key is missing");
  need(!changes || cost !== undefined || Object.keys(costs ?? {})[0], "a cost, or costs, are wanted");
  return bounded(fieldsOf({ ...request, requestId: request.requestId === undefined ? id : request.requestId }, undefined, -most));
}

/** settleBody returns the body of a settlement. */
export const settleBody = (reservation: string, costs: Costs): Built => bounded({ reservation, costs: costsOf(costs, 0) });

/** bounded returns a body with these fields. */
function bounded(fields: Fields): Built {
  let body: string;
  try {
    body = JSON.stringify(fields);
  } catch (e) {
    throw new RequestError((e as Error).message); // a bigint, or a circle, where a node expects neither
  }
  need(body.length * 3 <= maxBody || utf8.encode(body).length <= maxBody, `the call has over ${maxBody} bytes`);
  return { body, fields };
}
