import { now } from "./clock.js";
import { decide, type Decision } from "./decision.js";
import { RequestError, type RlnodeError } from "./errors.js";
import { limitOf, type Fields, type Limit } from "./request.js";

const day = 86_400_000;
const units: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: day, minute: 60_000, hour: 3_600_000, day, week: 7 * day, month: 31 * day, year: 366 * day }; // prettier-ignore

/** millis reads a window, such as 1d12h; NaN if it is none. */
export function millis(per: string | number): number {
  let sum = Number(per) || 0;
  const rest = String(per).replace(/([\d.]*)([a-z]+)/g, (_, n, unit: string) => ((sum += Number(n || 1) * units[unit]!), ""));
  return Number(rest || 0) === sum || !rest ? sum : NaN;
}

/** windowOf returns the window of a limit as nodes spell it. */
const windowOf = ({ per, per_ms: ms }: Fields): number => millis(ms ?? per);

const maxWindows = 100_000;

/** who returns the attributes that say who asks. Endpoint and method say what for: whoever asks could vary them. */
const who = (attributes: Fields = {}) =>
  Object.entries(attributes).filter(([name]) => name !== "endpoint" && name !== "method").sort(); // prettier-ignore

/**
 * Local limits in this process while no node answers. Whatever a limit's algorithm, it admits what a window admits that begins with a
 * subject's first hit. A check that brings its limits is decided by those, any other by those given here.
 */
export class Local {
  readonly #windows = new Map<string, { used: number; ends: number }>();
  readonly #given: Fields[];
  #swept = -Infinity;

  constructor(given: readonly Limit[]) {
    this.#given = given.map(limitOf);
    for (const l of this.#given) if (!(windowOf(l) > 0)) throw new RequestError(`local: ${l.per} is no window`);
  }

  /** decide decides the fields of a check as a node would. */
  decide(fields: Fields, error: RlnodeError): Decision {
    const { rule, key, attributes, limits, subjects } = fields;
    const at = Math.floor(now()); // so that all spans are whole
    const own = subjects ?? limits;
    const name = own ? "inline" : (rule ?? "local");
    const asked = own ? subjects ?? [fields] : [{ ...fields, limits: this.#given, namespace: "\0" + rule, key: key ?? who(attributes) }]; // prettier-ignore
    if (asked.some((s: Fields) => s.limits.some((l: Fields) => l.algorithm === "concurrency")))
      return decide({ allowed: false, decidedBy: "local", retryAfterMs: 1000, code: "rate-limited", reason: "No node answers, and one process can't tell how many slots others hold.", error }); // prettier-ignore
    let refused = false;
    const looks = asked.flatMap((s: Fields) =>
      s.limits.map((l: Fields) => {
        const { unit = "requests", per, limit, burst, algorithm } = l;
        const windowMs = windowOf(l);
        const id = JSON.stringify([s.namespace, s.key, unit, windowMs, algorithm]);
        const as = fields.peek ? "peek" : s.mode;
        const cost: number = s.costs?.[unit] ?? (unit === "requests" ? (s.cost ?? 1) : 0);
        const most = (/bucket/.test(algorithm!) && burst) || limit;
        if (!(windowMs > 0)) throw new RequestError(`per: ${per} is no window`);
        let w = this.#windows.get(id);
        if (!w || w.ends <= at) w = { used: 0, ends: at + windowMs };
        const used = w.used + cost;
        const allowed = s.shadow || used <= most;
        refused ||= !allowed && as !== "count";
        return { id, unit, limit: most, windowMs, ends: w.ends, used: w.used, after: used, allowed, cost, takes: as !== "peek" };
      }),
    );
    // Known windows go on when there is room for no more of them.
    const more = looks.filter((l: Fields) => l.takes && !this.#windows.has(l.id)).length;
    const full = () => more && this.#windows.size + more > maxWindows;
    if (full() && at - this.#swept > 1000) {
      this.#swept = at;
      for (const [id, w] of this.#windows) if (w.ends <= at) this.#windows.delete(id);
    }
    if (full()) return decide({ allowed: false, decidedBy: "local", retryAfterMs: 1000, code: "rate-limited", reason: "Too many are limited while no node answers.", error });
    for (const l of looks) {
      if (refused) break;
      l.used = l.after;
      if (l.takes) this.#windows.set(l.id, { used: l.used, ends: l.ends });
    }
    const left = (l: Fields) => (l.allowed ? 1 - l.used / (l.limit || 1) : -l.ends);
    const { unit, limit, windowMs, used, allowed, cost, ends } = looks.sort((a: Fields, b: Fields) => left(a) - left(b))[0];
    const resetAfterMs = ends - at;
    return decide({
      allowed, counted: !allowed && !refused, code: refused ? (cost > limit ? "cost-above-limit" : "rate-limited") : "", rule: name, unit, limit, used, remaining: Math.max(0, limit - used), windowMs, resetAfterMs,
      retryAfterMs: allowed ? 0 : cost > limit ? -1 : resetAfterMs, decidedBy: "local", error,
    }); // prettier-ignore
  }
}
