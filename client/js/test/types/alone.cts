// Compiled, not run: CommonJS, and no types of other packages.
import rlnode = require("rlnode");
import { RlnodeStore } from "rlnode/express-rate-limit";

const client = new rlnode.RlnodeClient({ nodes: "http://127.0.0.1:8080" });
void client.check({ rule: "r", key: "k" }).then((d: rlnode.Decision) => d.allowed);
void new RlnodeStore({ client }).increment("k").then((r) => r.totalHits);
