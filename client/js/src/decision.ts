import { RlnodeError } from "./errors.js";

/** The way in which a check was decided; "error": no node decided, and `onError` did. */
export type DecidedBy = "owner" | "forward" | "lease" | "standby" | "fallback" | "list" | "none" | "error" | (string & {});

/**
 * The answer to a check. The figures are those of the tightest limit: the one that refused, or that with the smallest share left. If no
 * limit was looked at, `rule` is empty and they are 0.
 */
export interface Decision {
  allowed: boolean;
  /** Not allowed, and the cost was taken all the same: all that is over was counted. */
  counted: boolean;
  /** The rule applies without limit, and no other rule has one: the figures are 0. */
  unlimited?: boolean;
  /** With the mode at_most, how much of the cost was taken. */
  granted?: number;
  /** It can never be allowed as it is: its cost is above the limit's capacity, or it is denied. Repeating it is no use. */
  never: boolean;
  /** The deny list refused, or no rule applied and the default is to deny: no waiting helps. Answer 403, not 429. */
  denied: boolean;
  /** "inline", or "inline/" and the namespace, of limits that came with the call. */
  rule: string;
  unit: string;
  limit: number;
  /** Rounded up; above `limit` after counts and penalties. */
  used: number;
  remaining: number;
  /** In which `limit` comes back; of a bucket, in which all of it refills. */
  windowMs: number;
  /** Of slots, in place of windowMs and rate: how long one lasts unless it is renewed. */
  ttlMs?: number;
  /** What the limit allows over time, as the rules say it. */
  rate?: Rate;
  /** Until the counter is fresh. */
  resetAfterMs: number;
  /** Until the same check could be allowed; -1: never. */
  retryAfterMs: number;
  /** Until more than `remaining` is available; absent if that is not known, or if it can't grow. */
  moreAfterMs?: number;
  /** How long to hold an allowed request to keep the rule's rate. */
  delayMs: number;
  decidedBy: DecidedBy;
  node: string;
  rulesVersion: number;
  /** Why the check was refused: "rate-limited", "cost-above-limit" (see `never`), "reduced", "blocked", "denied"; else empty. */
  code: string;
  /** Why the check was refused, in a sentence; else empty. */
  reason: string;
  /** The limits that refused, as far as they are known. */
  violated: string[];
  /** What the rule that refused says to the end user. */
  refusal?: Refusal;
  /** Every limit that was looked at, if `detail` was asked for. */
  limits?: LimitDecision[];
  /** For the end user: `Retry-After` of a refusal, and with `headers: true` the rate headers that the rules turn on. */
  headers: Record<string, string>;
  /** Why no node decided, if `decidedBy` is "error". */
  error?: RlnodeError;
}

/** `limit` units in each `perMs`. */
export interface Rate {
  limit: number;
  perMs: number;
}

/** A rule's own answer to the end user, in place of the usual one. */
export interface Refusal {
  /** 400 to 499, or 503. */
  status?: number;
  type?: string;
  title?: string;
  detail?: string;
  code?: string;
  headers?: Record<string, string>;
  /** An object, or plain text. It replaces the problem. */
  body?: string | Record<string, unknown>;
}

/** What one limit said. */
export interface LimitDecision {
  rule: string;
  name: string;
  algorithm: string;
  unit: string;
  limit: number;
  windowMs: number;
  ttlMs?: number;
  rate?: Rate;
  used: number;
  remaining: number;
  resetAfterMs: number;
  retryAfterMs: number;
  moreAfterMs?: number;
  allowed: boolean;
  shadow: boolean;
  /** There is no limit in `unit`, which is absent for all units; nor are there figures. */
  unlimited?: boolean;
}

/** A decision with the id of what was reserved; the id is empty if nothing was. */
export interface Reservation extends Decision {
  reservation: string;
  /** Where the rules limit slots, too, one is held and renewed until `settle`: this ends if it is lost, as Slot.signal does. */
  signal?: AbortSignal;
}

export interface Settlement {
  reservation: string;
  settled: boolean;
  costs: Record<string, number>;
  remaining?: number;
  /** It came after the reservation's end. */
  expired?: boolean;
  repeated: boolean;
}

/** What a subject has used. */
export interface Usage {
  rule?: string;
  namespace?: string;
  key: string | string[];
  limits: LimitUsage[];
  /** How many more counters the subject has whose limits the node does not know. */
  unknown?: number;
  /** When the rule's block of the subject ends, in Unix time; 0 if it has none, 253402300799999 if the block has no end. Until then nothing remains. */
  blockedUntilMs?: number;
  /** After an adjustment: by how much usage rose in each unit. A reward takes off no more than there was; of several limits, the most. */
  applied?: Record<string, number>;
}

export interface LimitUsage {
  name: string;
  algorithm: string;
  unit: string;
  limit: number;
  windowMs: number;
  rate?: Rate;
  /** What there is to use where the subject is counted: limit, or the region's or the node's part of it. */
  share: number;
  /** Without what is leased; above share in debt. */
  used: number;
  /** Held by nodes that may allow checks with it, and not used yet. */
  leased: number;
  /** share less used and leased; 0 while the subject is blocked. */
  remaining: number;
  resetAfterMs: number;
  moreAfterMs?: number;
  /** A node did not say how much it holds: that counts as used. */
  estimated?: boolean;
  /** Of a limit of slots: how many hold some, and those that end first, at most 100. */
  holders?: number;
  slots?: Holder[];
  /** After an adjustment: by how much `used` rose. */
  applied?: number;
  /** There is no limit in `unit`, which is absent for all units; nor are there figures. */
  unlimited?: boolean;
}

/** Who holds a slot; its id is short, for people. */
export interface Holder {
  slot: string;
  n: number;
  ageMs: number;
  expiresMs: number;
  who: string;
}

// eslint-disable-next-line @typescript-eslint/no-explicit-any
type Json = any;

const names: Record<string, string> = {};

/** camel returns what a node says with JavaScript's spelling of names: retryAfterMs for retry_after_ms. Names in costs and applied are units. */
export function camel(value: Json): Json {
  if (Array.isArray(value)) return value.map(camel);
  if (typeof value !== "object" || !value) return value;
  const out: Json = {};
  for (const name in value) {
    const as = (names[name] ??= name.replace(/[_-](.)/g, (_, letter: string) => letter.toUpperCase()));
    out[as] = name === "costs" || name === "applied" ? value[name] : camel(value[name]);
  }
  return out;
}

/** decide returns a decision with what is known of it. */
export function decide(d: Partial<Decision> & { allowed: boolean }): Decision {
  const out: Decision = {
    counted: false, never: false, denied: false, rule: "", unit: "", limit: 0, used: 0, remaining: 0, windowMs: 0, resetAfterMs: 0, retryAfterMs: 0, delayMs: 0,
    decidedBy: "error", node: "", rulesVersion: 0, code: "", reason: "", violated: [], headers: {}, ...d,
  }; // prettier-ignore
  if (!out.allowed) {
    out.never = out.retryAfterMs === -1;
    out.denied = out.decidedBy === "list" || out.decidedBy === "none";
    if (!out.violated[0]) out.violated = out.limits?.filter((l) => !l.allowed && !l.shadow).map((l) => l.name) ?? (out.rule ? [out.rule] : []);
    out.reason ||= out.denied
      ? "The rules deny this."
      : out.rule
        ? `The limit of ${amount(out)} ${out.never ? "can never allow this" : "is used up"}.`
        : "No node of the rate limiter could decide.";
    if (out.retryAfterMs > 0) out.headers["Retry-After"] = String(seconds(out.retryAfterMs));
  }
  return out;
}

/** decisionOf reads an answer to a check; undefined if it decides nothing. */
export function decisionOf(answer: Json): Decision | undefined {
  if (typeof answer?.allowed !== "boolean" || !answer.decided_by || answer.decided_by === "error") return undefined;
  const { refusal, ...plain } = answer; // its names are the rule's
  const { type: _, title: __, status: ___, detail: reason = "", violatedPolicies: violated = [], ...rest } = camel(plain);
  return decide({ reason, violated, ...rest, ...(typeof refusal === "object" && refusal ? { refusal } : {}) });
}

/** amount says how much a limit allows: "100 requests per 60 s", or "5 requests at once, 100 per 60 s". */
const amount = ({ limit, unit, windowMs, ttlMs, rate = { limit, perMs: windowMs } }: Decision): string =>
  ttlMs ? `${limit} ${unit} at once` : `${limit} ${unit}${rate.limit === limit ? "" : ` at once, ${rate.limit}`} per ${rate.perMs / 1000} s`;

export const seconds = (ms: number): number => Math.ceil(ms / 1000);

/** rateHeaders are the names of the headers for the end user. Retry-After is made from the decision. */
export const rateHeaders = ["RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"];
