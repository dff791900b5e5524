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
    let refused = false;
    const looks = this.#limits(request).map(([q, limit, key]) => {
      const id = JSON.stringify([limit.rule, q.namespace, key, limit.unit, limit.windowMs]);
      const as = mode ?? q.mode;
      const cost: number = q.costs?.[limit.unit] ?? (limit.unit === "requests" ? (q.cost ?? 1) : 0);
      let c = this.#counters.get(id);
      if (!c || c.ends <= now) c = { used: 0, ends: now + limit.windowMs };
      const allowed = q.shadow || !cost || c.used + cost <= limit.limit;
      refused ||= !allowed && as !== "count";
      return { ...limit, ...c, id, allowed, cost, takes: as !== "peek" && cost > 0 };
    });
    for (const l of looks) {
      if (refused || !l.takes) continue;
      l.used += l.cost;
      this.#counters.delete(l.id); // the newest is the last
      this.#counters.set(l.id, { used: l.used, ends: l.ends });
      for (const [oldest] of this.#counters) if (this.#counters.size > maxCounters) this.#counters.delete(oldest); else break; // prettier-ignore
    }
    const left = (l: Limit & { used: number; allowed: boolean }) => (l.allowed ? 1 - l.used / l.limit : -Infinity);
    const [worst] = looks.sort((a, b) => left(a) - left(b));
    if (!worst) return decide({ allowed: true, error });
    const { rule, unit, limit, windowMs, used, allowed, cost, ends } = worst;
    const resetAfterMs = ends - now;
    const retryAfterMs = allowed ? 0 : cost > limit ? -1 : resetAfterMs;
    const counted = !allowed && !refused;
    return decide({ allowed, counted, rule, unit, limit, windowMs, used, remaining: Math.max(0, limit - used), resetAfterMs, retryAfterMs, error });
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
