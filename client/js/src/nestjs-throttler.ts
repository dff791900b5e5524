import type { RlnodeClient } from "./client.js";
import { answered, storeClientOf, first, windowOf, type Connection } from "./connect.js";
import { seconds } from "./decision.js";

export type StorageOptions = Connection & { namespace?: string; prefix?: string };

/** What the guard wants to know; the times are in seconds. */
export interface StorageRecord {
  totalHits: number;
  timeToExpire: number;
  isBlocked: boolean;
  timeToBlockExpire: number;
}

/** A storage for @nestjs/throttler: `ThrottlerModule.forRoot({ throttlers: […], storage: new RlnodeStorage({ nodes: [url] }) })`. */
export class RlnodeStorage {
  readonly #client: RlnodeClient;
  readonly #own: boolean;

  constructor(private readonly options: StorageOptions) {
    ({ client: this.#client, own: this.#own } = storeClientOf(options));
  }

  /**
   * Counts a hit, unless the key is blocked. The hit that is over the limit begins a block, and is not counted; when the block is over,
   * the count begins anew.
   */
  async increment(key: string, ttl: number, limit: number, blockDuration: number, throttlerName: string): Promise<StorageRecord> {
    const namespace = this.options.namespace ?? "nestjs-throttler";
    const prefix = this.options.prefix ?? "";
    const blocks = blockDuration > 0;
    const refuse = (ms: number): StorageRecord => ({ totalHits: limit + 1, timeToExpire: seconds(ttl), isBlocked: true, timeToBlockExpire: seconds(ms) });
    if (limit < 1) return refuse(blocks ? blockDuration : ttl);
    const hits = { namespace, key: [prefix + key, throttlerName], limits: [first(limit, windowOf("ttl", ttl))] };
    const block = { namespace, key: [...hits.key, "block"], limits: [] as object[] };
    if (blocks) block.limits.push({ ...first(1, windowOf("blockDuration", blockDuration)), unit: "blocks" });
    const looked = { ...block, mode: "peek", costs: { blocks: 1 } };
    const d = await this.#client.check({ subjects: [hits, ...(blocks ? [looked] : [])], detail: true } as never);
    answered(d, this.options);
    if (d.error && !d.rule) return d.allowed ? { totalHits: 1, timeToExpire: seconds(ttl), isBlocked: false, timeToBlockExpire: 0 } : refuse(ttl);
    const of = (unit: string) => d.limits?.find((l) => l.unit === unit) ?? d;
    if (d.allowed) return { totalHits: of("requests").used, timeToExpire: seconds(of("requests").resetAfterMs), isBlocked: false, timeToBlockExpire: 0 };
    if (!blocks || d.error || !of("blocks").allowed) return refuse(of(blocks ? "blocks" : "requests").retryAfterMs);
    // No hit is counted from now on, so the count can be made fresh for the time after the block.
    await this.#client.count({ ...block, costs: { blocks: 1 } } as never);
    await this.#client.reset(hits);
    return refuse(blockDuration);
  }

  /** Closes the storage's own client. */
  onApplicationShutdown(): void {
    if (this.#own) this.#client.close();
  }
}
