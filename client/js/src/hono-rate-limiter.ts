import { Store, type StoreOptions } from "./store.js";

export type { StoreOptions };

/** A store for hono-rate-limiter: `rateLimiter({ store: new RlnodeStore({ nodes: [url] }), … })`. */
export class RlnodeStore extends Store {
  constructor(options: StoreOptions) {
    super(options, "hono-rate-limiter");
  }
}
