import { storeClientOf, first, hitsOf, windowOf, type Connection } from "./connect.js";
import type { Usage } from "./decision.js";

export type StoreOptions = Connection & { namespace?: string; prefix?: string };

/** What the plugin passes on to a store, of a route or of all. */
interface PluginOptions {
  continueExceeding?: boolean;
  exponentialBackoff?: boolean;
  routeInfo?: { method?: unknown; url?: string };
}

interface Result {
  current: number;
  ttl: number;
}

type Callback = (error: Error | null, result?: Result) => void;

/**
 * A store for @fastify/rate-limit. The plugin makes it, and passes only its own options on, so give them beforehand:
 * `register(rateLimit, { store: RlnodeStore.with({ nodes: [url] }), … })`.
 */
export class RlnodeStore {
  /** Returns a store to which these options belong. */
  static with(options: StoreOptions): new (plugin?: object) => RlnodeStore {
    const given = { ...options, client: storeClientOf(options).client } as StoreOptions;
    return class extends RlnodeStore {
      constructor(plugin?: object) {
        super({ ...plugin, ...given });
      }
    };
  }

  readonly #options: StoreOptions & PluginOptions;

  constructor(options: StoreOptions & PluginOptions) {
    for (const name of ["continueExceeding", "exponentialBackoff"] as const)
      if (options[name]) throw new TypeError(`rlnode: ${name} is not supported: a window ends when its first hit said`);
    this.#options = { ...options, client: storeClientOf(options).client } as StoreOptions;
  }

  incr(key: string, done: Callback, timeWindow: number, max: number): void {
    this.#ask("count", key, done, timeWindow, max, (d) => {
      const { hits, ms } = hitsOf(d, this.#options, timeWindow);
      return { current: hits, ttl: ms };
    });
  }

  read(key: string, done: Callback, timeWindow: number, max: number): void {
    this.#ask("usage", key, done, timeWindow, max, ({ limits }: Usage) => ({ current: limits[0]!.used, ttl: limits[0]!.resetAfterMs }));
  }

  /** Returns the store of a route, which counts for itself. */
  child(route: object): RlnodeStore {
    const { routeInfo: { method = "", url = "" } = {}, continueExceeding, exponentialBackoff } = route as PluginOptions;
    return new RlnodeStore({ ...route, ...this.#options, continueExceeding, exponentialBackoff, prefix: `${this.#options.prefix ?? ""}${String(method)}${url}-` } as StoreOptions & PluginOptions);
  }

  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  #ask(call: "count" | "usage", key: string, done: Callback, timeWindow: number, max: number, read: (answer: any) => Result): void {
    const { client, namespace = "fastify-rate-limit", prefix = "" } = this.#options;
    Promise.resolve()
      .then((): Promise<unknown> => client![call]({ namespace, key: prefix + key, limits: [first(max, windowOf("timeWindow", timeWindow))] }))
      .then(read)
      .then((result) => done(null, result), done);
  }
}
