// @ts-nocheck
import { RlnodeStore } from "rlnode/hono-rate-limiter";
import suite from "rlnode/suite";

export class MemoryStore extends RlnodeStore {
  constructor() {
    super(suite.options());
  }
}
