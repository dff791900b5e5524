// A web server that is limited by rlnode: all of it by the nodes' rules, and its search by express-rate-limit, whose counts the
// nodes keep, so that any number of these processes share one limit.
//
//   go run ./cmd/rlnode serve                             in one terminal
//   cd examples/express && npm install && npm start       in another
//
//   curl -i http://127.0.0.1:8000/         a page, and the headers that say what is left
//   curl -i http://127.0.0.1:8000/search   five a minute, then 429
import express from "express";
import { rateLimit as memoryOrStore } from "express-rate-limit";
import { RlnodeClient } from "rlnode";
import { rateLimit } from "rlnode/express";
import { RlnodeStore } from "rlnode/express-rate-limit";

const client = new RlnodeClient({
  nodes: (process.env.RLNODE_NODES ?? "http://127.0.0.1:8080").split(","),
  token: process.env.RLNODE_API_TOKEN,
  onError: "local", // without a node, each process limits by itself:
  local: { limit: 100, per: "1m" }, // each address, where the nodes' rules would decide; the search by its own limit
});

const app = express();
app.use(rateLimit({ client }));
app.get("/", (request, response) => {
  const { rule, remaining, decidedBy } = request.rlnode;
  response.send(`Hello. Rule ${rule} has ${remaining} left (decided by ${decidedBy}).\n`);
});
app.use("/search", memoryOrStore({ windowMs: 60_000, limit: 5, standardHeaders: "draft-8", legacyHeaders: false, store: new RlnodeStore({ client }) }));
app.get("/search", (_, response) => response.send("Found nothing.\n"));

const server = app.listen(Number(process.env.PORT ?? 8000), "127.0.0.1", () => {
  console.log(`Serving on http://127.0.0.1:${server.address().port}. Ctrl-C ends this server.`);
});
