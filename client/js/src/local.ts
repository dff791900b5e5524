import { decide, type Decision } from "./decision.js";
import type { RlnodeError } from "./errors.js";
import type { CheckRequest, Fields, Mode } from "./request.js";

/** The limit that checks by rules or attributes have meanwhile, if no answer has told the rule's. */
export interface LocalLimit {
  limit: number;
  /** As of a limit: "1m", or milliseconds. */
  per: string | number;
}

const day = 86_400_000;
const units: Record<string, number> = {
  ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: day, minute: 60_000, hour: 3_600_000, day, week: 7 * day, month: 30 * day, year: 365 * day,
}; // prettier-ignore

/** millis reads a window, such as 1d12h. */
function millis(per: string | number): number {
  let sum = Number(per) || 0;
  for (const [, n, unit] of String(per).matchAll(/([0-9.]*)([a-z]+)/g)) sum += Number(n || 1) * units[unit!]!;
  return sum;
}

interface Limit {
  rule: string;
  unit: string;
  limit: number;
  windowMs: number;
}

const maxRules = 1000;
const maxCounters = 10_000;

/**
 * Local decides in this process while no node answers: each limit is a window from its first hit. Limits that come with the call have
 * their own amounts. A rule's are those that its last answer told, else those of `given`, else there are none. At most 10,000
 * counters are kept; beyond, the oldest are forgotten.
 */
export class Local {
  #counters = new Map<string, { used: number; ends: number }>();
  #rules = new Map<string, Limit>();

  constructor(private readonly given?: LocalLimit) {}

  /** learn remembers the limit that an answer told. */
  learn(request: CheckRequest, { rule, unit, limit, windowMs }: Decision): void {
    const name = ruleOf(request);
    if (name && rule && (this.#rules.has(name) || this.#rules.size < maxRules)) this.#rules.set(name, { rule, unit, limit, windowMs });
  }

  decide(request: CheckRequest, mode: Mode | undefined, error: RlnodeError): Decision {
    const now = Date.now();
    let worst: Partial<Decision> & { allowed: boolean } = { allowed: true };
    let refused = false;
    const taken: (() => void)[] = [];
    for (const [q, limit, key] of this.#limits(request)) {
      const id = JSON.stringify([limit.rule, q.namespace, key, limit.unit, limit.windowMs]);
      const as = mode ?? q.mode;
      const cost: number = q.costs?.[limit.unit] ?? (limit.unit === "requests" ? (q.cost ?? 1) : 0);
      let c = this.#counters.get(id);
      if (!c || c.ends <= now) c = { used: 0, ends: now + limit.windowMs };
      const used = c.used + cost;
      const allowed = q.shadow || !cost || used <= limit.limit;
      refused ||= !allowed && as !== "count";
      const d = { ...limit, allowed, used: c.used, remaining: Math.max(0, limit.limit - c.used), resetAfterMs: c.ends - now, retryAfterMs: 0 };
      if (!allowed) d.retryAfterMs = cost > limit.limit ? -1 : d.resetAfterMs;
      if (worst.allowed && (!allowed || !worst.limit || d.remaining / d.limit < worst.remaining! / worst.limit)) worst = d;
      if (as !== "peek" && cost)
        taken.push(() => {
          this.#counters.delete(id);
          for (const [oldest] of this.#counters) if (this.#counters.size >= maxCounters) this.#counters.delete(oldest); else break; // prettier-ignore
          this.#counters.set(id, { ...c, used });
          d.used = used;
          d.remaining = Math.max(0, d.limit - used);
        });
    }
    if (!refused) for (const take of taken) take();
    return decide({ ...worst, counted: !worst.allowed && !refused, error });
  }

  /** limits returns the limits of a check, each with its subject and what it is known by. */
  #limits(request: CheckRequest): [Fields, Limit, unknown][] {
    const subjects: Fields[] = request.subjects ? [...request.subjects] : [request];
    if (!ruleOf(request))
      return subjects.flatMap((s) => s.limits.map((l: Fields) => [s, { rule: "inline", unit: l.unit ?? "requests", limit: l.limit, windowMs: millis(l.per) }, s.key]));
    const { given } = this;
    const limit = this.#rules.get(ruleOf(request)!) ?? (given && { rule: "local", unit: "requests", limit: given.limit, windowMs: millis(given.per) });
    // What is asked for does not belong to who asks.
    const { endpoint: _, method: __, ...who } = request.attributes ?? {};
    return limit ? [[request, limit, request.key ?? who]] : [];
  }
}

/** ruleOf names what a check asks for: a rule, or the rules for these attributes. */
const ruleOf = ({ rule, attributes }: CheckRequest): string | undefined => rule ?? (attributes && "?" + Object.keys(attributes).join());
