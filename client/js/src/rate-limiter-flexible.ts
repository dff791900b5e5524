import type { IRateLimiterStoreOptions, RateLimiterStoreAbstract } from "rate-limiter-flexible";
import { RateLimiterRes } from "rate-limiter-flexible";
// @ts-expect-error The package has no types for this file, and does not export the class from its index.
import Abstract from "rate-limiter-flexible/lib/RateLimiterStoreAbstract.js";
import type { RlnodeClient } from "./client.js";
import { storeClientOf, first, hitsOf, windowOf, type Connection } from "./connect.js";
import type { LimitUsage, Usage } from "./decision.js";
import type { Limit } from "./request.js";

export type LimiterOptions = Connection & Omit<IRateLimiterStoreOptions, "storeClient"> & { namespace?: string };

/** Raw is what the base class gets of a counter. */
interface Raw {
  consumed: number;
  ms: number; // until it ends; -1: never
}

const year = 366 * 86_400_000;
const ever = 100 * year; // no duration is longer than a year, so that one is told from it

/** until returns a timer's rest as the base class expects it. */
const until = (ms: number): number => (ms > year ? -1 : ms);

/** A timer: a bucket that drains one unit each millisecond. What is put in runs out after so many. */
const timer: Limit = { limit: 1000, per: "1s", algorithm: "token-bucket", burst: 1, unit: "ms" };
/** What a key has consumed while its timer runs. */
const points: Limit = { ...first(1, year), unit: "points" };

const Base = Abstract as typeof RateLimiterStoreAbstract;

/**
 * A limiter of rate-limiter-flexible, with blocks, penalties, rewards, insurance and all else of its stores:
 * `new RateLimiterRlnode({ nodes: [url], points: 5, duration: 60 })`.
 *
 * A key has a counter whose window begins with its first point. block(), set() and a duration of its own need an end that no window
 * has: a timer beside the counter, as a second subject. While it runs, it keeps points out of the counter, in one decision.
 */
export class RateLimiterRlnode extends Base {
  readonly #client: RlnodeClient;
  readonly #own: boolean;
  readonly #options: LimiterOptions;

  constructor(options: LimiterOptions) {
    super(options as never);
    const given = (options as { storeClient?: RlnodeClient }).storeClient;
    this.#options = given ? ({ ...options, client: given } as LimiterOptions) : options;
    ({ client: this.#client, own: this.#own } = storeClientOf(this.#options));
    for (const name of ["duration", "blockDuration", "inMemoryBlockDuration"] as const)
      if (options[name]) windowOf(name, options[name] * 1000);
  }

  /** Closes the limiter's own client. */
  close(): void {
    if (this.#own) this.#client.close();
  }

  async _upsert(rlKey: string, change: number, msDuration: number, forceExpire = false): Promise<Raw> {
    if (!Number.isSafeInteger(Number(change))) throw new TypeError(`rlnode: points: ${change} is no whole number`);
    const n = Number(change);
    if (forceExpire) return this.#force(rlKey, n, msDuration);
    const own = this.#isOwn(msDuration);
    if (n >= 0 && own) {
      const { namespace, key, limits } = this.#counter(rlKey);
      const gate = { ...this.#gate(rlKey, [timer]), consistency: "exact", mode: "peek", costs: { ms: 1 } };
      const d = await this.#client.check({ subjects: [{ namespace, key, limits, consistency: "exact", mode: "count", cost: n }, gate], detail: true } as never);
      const of = (unit: string) => d.limits?.find((l) => l.unit === unit);
      if (d.error || of("ms")?.allowed !== false) {
        const c = of("requests");
        const { hits, ms } = hitsOf(c ? { ...d, used: c.used, resetAfterMs: c.resetAfterMs } : d, this.#options, msDuration);
        return { consumed: hits, ms: this.#ends(ms) };
      }
    }
    const now = await this.#look(rlKey);
    if (now.ms > 0) {
      const forced = n === 0 ? now : used(await this.#client.adjust({ ...this.#gate(rlKey, [timer, points]), costs: { points: n } }));
      return { consumed: forced.points, ms: until(now.ms) };
    }
    if (!own && now.consumed === 0) return this.#force(rlKey, Math.max(n, 0), msDuration);
    if (n === 0) return { consumed: now.consumed, ms: this.#ends(now.resetMs) };
    const [c] = (await this.#client.adjust({ ...this.#counter(rlKey), cost: n })).limits;
    return { consumed: c!.used, ms: this.#ends(c!.resetAfterMs) };
  }

  async _get(rlKey: string): Promise<Raw | null> {
    const now = await this.#look(rlKey);
    if (now.ms > 0) return { consumed: now.points, ms: until(now.ms) };
    return now.consumed > 0 ? { consumed: now.consumed, ms: this.#ends(now.resetMs) } : null;
  }

  async _delete(rlKey: string): Promise<boolean> {
    const was = await this._get(rlKey);
    const { namespace, key } = this.#counter(rlKey);
    await Promise.all([this.#client.reset({ namespace, key }), this.#client.reset({ namespace, key: [key, "timer"] })]);
    return was !== null;
  }

  _getRateLimiterRes(_rlKey: string, changedPoints: number, { consumed, ms }: Raw): RateLimiterRes {
    return new RateLimiterRes(Math.max(this.points - consumed, 0), ms, consumed, consumed === Number(changedPoints));
  }

  /** force makes the key's points n, for so long, whatever they were. */
  async #force(rlKey: string, n: number, msDuration: number): Promise<Raw> {
    const ms = msDuration > 0 ? windowOf("duration", msDuration) : ever;
    const gate = this.#gate(rlKey, [timer, points]);
    let u = used(await this.#client.usage(gate));
    // Another process may set the key at the same time: the last one wins.
    for (let i = 0; i < 3 && (u.points !== n || u.ms > ms || u.ms < ms - 1000); i++) {
      const costs: Record<string, number> = {};
      if (u.points !== n) costs.points = n - u.points;
      if (u.ms !== ms) costs.ms = ms - u.ms;
      u = used(await this.#client.adjust({ ...gate, costs }));
    }
    // The timer is on, so what is in the counter is no longer of use.
    await this.#client.reset(this.#counter(rlKey));
    return { consumed: n, ms: msDuration > 0 ? ms : -1 };
  }

  async #look(rlKey: string): Promise<{ ms: number; points: number; consumed: number; resetMs: number }> {
    const [gate, counter] = await Promise.all([
      this.#client.usage(this.#gate(rlKey, [timer, points])),
      this.#client.usage(this.#counter(rlKey)),
    ]);
    const [c] = counter.limits;
    return { ...used(gate), consumed: c?.used ?? 0, resetMs: c?.resetAfterMs ?? 0 };
  }

  #isOwn(msDuration: number): boolean {
    return Math.abs(msDuration - this.duration * 1000) < 1 || (msDuration <= 0 && !(this.duration > 0));
  }

  #ends(ms: number): number {
    return this.duration > 0 ? ms : -1;
  }

  #counter(key: string) {
    // Without a duration points stay for good; a bucket that gives one point back a year is next to it.
    const limit: Limit =
      this.duration > 0
        ? first(this.points, Math.ceil(this.duration * 1000))
        : { limit: 1, per: year, algorithm: "token-bucket", burst: Math.max(1, this.points) };
    return { namespace: this.#options.namespace ?? "rate-limiter-flexible", key, limits: [limit] };
  }

  #gate(key: string, limits: Limit[]) {
    return { namespace: this.#options.namespace ?? "rate-limiter-flexible", key: [key, "timer"], limits };
  }
}

function used(u: Usage): { ms: number; points: number } {
  const of = (unit: string): LimitUsage | undefined => u.limits.find((l) => l.unit === unit);
  return { ms: of("ms")?.used ?? 0, points: of("points")?.used ?? 0 };
}
