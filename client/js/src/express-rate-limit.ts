import { Store, type StoreOptions } from "./store.js";

export type { StoreOptions };

/** A store for express-rate-limit: `rateLimit({ store: new RlnodeStore({ nodes: [url] }), … })`. */
export class RlnodeStore extends Store {
  constructor(options: StoreOptions) {
    super(options, "express-rate-limit");
  }
}
