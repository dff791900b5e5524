// An Express app in a process of its own: node app.mjs NODE-URL LIMIT. It prints its address.
import express from "express";
import { rateLimit } from "express-rate-limit";
import { RlnodeStore } from "rlnode/express-rate-limit";

const [url, limit] = process.argv.slice(2);
const app = express();
const store = new RlnodeStore({ nodes: [url], timeoutMs: 10_000, prefix: "shared:" });
app.use(rateLimit({ windowMs: 600_000, limit: Number(limit), keyGenerator: (request) => String(request.query.k), store, validate: false }));
app.get("/", (_, response) => response.send("ok"));
const server = app.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
