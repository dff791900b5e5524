import { clientOf, first, hitsOf, windowOf, type Connection } from "./connect.js";

export type StoreOptions = Connection & { namespace?: string; prefix?: string };

/** What the plugin passes on to a store, of a route or of all. */
interface PluginOptions {
  continueExceeding?: boolean;
  exponentialBackoff?: boolean;
  groupId?: string;
  routeInfo?: { method?: unknown; url?: string };
}

type Callback = (error: Error | null, result?: { current: number; ttl: number }) => void;

/**
 * A store for @fastify/rate-limit. The plugin makes it, and passes only its own options on, so give them beforehand:
 * `register(rateLimit, { store: RlnodeStore.with({ nodes: [url] }), … })`.
 */
export class RlnodeStore {
  /** Returns a store to which these options belong. */
  static with(options: StoreOptions): new (plugin?: object) => RlnodeStore {
    const connected = { ...options, client: clientOf(options).client } as StoreOptions;
    return class extends RlnodeStore {
      constructor(plugin: object = {}) {
        super({ ...plugin, ...connected });
      }
    };
  }

  readonly #options: StoreOptions;

  constructor(options: StoreOptions & PluginOptions) {
    for (const name of ["continueExceeding", "exponentialBackoff"] as const)
      if (options[name]) throw new TypeError(`rlnode: ${name} is not supported: a window ends when it was to end at its first hit`);
    this.#options = { ...options, client: clientOf(options).client } as StoreOptions;
  }

  incr(key: string, done: Callback, timeWindow: number, max: number): void {
    this.#answer(done, async () => {
      const d = await this.#options.client!.count({ ...this.#target(key, timeWindow, max), cost: 1 });
      const { hits, ms } = hitsOf(d, this.#options, timeWindow);
      return { current: hits, ttl: ms };
    });
  }

  read(key: string, done: Callback, timeWindow: number, max: number): void {
    this.#answer(done, async () => {
      const [u] = (await this.#options.client!.usage(this.#target(key, timeWindow, max))).limits;
      return u && u.used > 0 ? { current: u.used, ttl: u.resetAfterMs } : { current: 0, ttl: 0 };
    });
  }

  /** Returns the store of a route, which counts for itself. */
  child(route: PluginOptions): RlnodeStore {
    const { method = "", url = "" } = route.routeInfo ?? {};
    return new RlnodeStore({ ...route, ...this.#options, prefix: `${this.#options.prefix ?? ""}${String(method)}${url}-` } as StoreOptions);
  }

  #target(key: string, timeWindow: number, max: number) {
    const { namespace = "fastify-rate-limit", prefix = "" } = this.#options;
    return { namespace, key: prefix + key, limits: [first(max, windowOf("timeWindow", timeWindow))] };
  }

  #answer(done: Callback, work: () => Promise<{ current: number; ttl: number }>): void {
    work().then(
      (result) => done(null, result),
      (e: Error) => done(e),
    );
  }
}
