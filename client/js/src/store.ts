import type { RlnodeClient } from "./client.js";
import { now } from "./clock.js";
import { storeClientOf, first, hitsOf, windowOf, type Connection } from "./connect.js";
import type { RlnodeError } from "./errors.js";

export type StoreOptions = Connection & {
  /** Of the subjects; one for each library unless said. */
  namespace?: string;
  /** In front of each key. Two limiters of the same window need different ones, or they count together. */
  prefix?: string;
  /** The largest limit, where the limiter's `limit` is a function. The count does not depend on it. */
  limit?: number;
};

/** What the limiter tells a store; the part that a store can look at. */
interface LimiterOptions {
  windowMs: number;
  limit?: unknown;
  max?: unknown;
}

const maxEmptied = 10_000;

/** Store counts for express-rate-limit and hono-rate-limiter: every hit, also above the limit, in a window from the first one. */
export class Store {
  /** Other processes have the same keys. */
  readonly localKeys = false;
  readonly prefix: string;
  readonly #client: RlnodeClient;
  readonly #own: boolean;
  readonly #emptied = new Map<string, number>(); // keys whose hits this process has all taken back, and when their window ends, by `now`
  #windowMs = 60_000;
  #limit = 0;

  constructor(
    private readonly options: StoreOptions,
    private readonly namespace: string,
  ) {
    ({ client: this.#client, own: this.#own } = storeClientOf(options));
    this.prefix = options.prefix ?? "";
  }

  init(o: LimiterOptions): void {
    this.#windowMs = windowOf("windowMs", o.windowMs);
    const limit = o.limit ?? o.max;
    this.#limit = this.options.limit ?? (typeof limit === "number" ? limit : Number.MAX_SAFE_INTEGER);
  }

  async increment(key: string): Promise<{ totalHits: number; resetTime: Date }> {
    const d = await this.#client.count({ ...this.#target(key), cost: 1 });
    const { hits, ms } = hitsOf(d, this.options, this.#windowMs);
    return { totalHits: hits, resetTime: new Date(Date.now() + ms) };
  }

  async get(key: string): Promise<{ totalHits: number; resetTime: Date } | undefined> {
    const [u] = (await this.#client.usage(this.#target(key))).limits;
    if (u && u.used > 0) return { totalHits: u.used, resetTime: new Date(Date.now() + u.resetAfterMs) };
    // A node does not tell a key whose hits were all taken back from one that nobody has counted.
    const ends = this.#emptied.get(key) ?? 0;
    return ends > now() ? { totalHits: 0, resetTime: new Date(Date.now() + ends - now()) } : undefined;
  }

  /** Takes one hit back. If no node can, the hit stays counted: libraries call this when the answer is out, and nobody catches. */
  async decrement(key: string): Promise<void> {
    try {
      const [u] = (await this.#client.adjust({ ...this.#target(key), cost: -1, requestId: null })).limits;
      if (u?.used === 0) this.#remember(key);
    } catch (e) {
      const { httpStatus } = e as RlnodeError;
      if (httpStatus > 0 && httpStatus < 500) throw e;
      this.options.log?.(`rlnode: a hit stays counted: ${(e as Error).message}`, "warn");
    }
  }

  async resetKey(key: string): Promise<void> {
    this.#emptied.delete(key);
    await this.#client.reset(this.#target(key));
  }

  #remember(key: string): void {
    this.#emptied.delete(key); // so that it becomes the newest
    this.#emptied.set(key, now() + this.#windowMs);
    if (this.#emptied.size > maxEmptied) this.#emptied.delete(this.#emptied.keys().next().value!);
  }

  /** Closes the store's own client. */
  shutdown(): void {
    if (this.#own) this.#client.close();
  }

  #target(key: string) {
    return { namespace: this.options.namespace ?? this.namespace, key: this.prefix + key, limits: [first(this.#limit || 1, this.#windowMs)] };
  }
}
