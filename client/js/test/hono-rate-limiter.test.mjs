import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Hono } from "hono";
import { rateLimiter } from "hono-rate-limiter";
import { RlnodeStore } from "rlnode/hono-rate-limiter";
import { eventually, start } from "./node.mjs";

let node;
before(async () => (node = await start()));
after(() => node.stop());

let prefixes = 0;
const store = (options = {}) => new RlnodeStore({ nodes: [node.url], timeoutMs: 10_000, prefix: `p${++prefixes}:`, ...options });

const serve = (options) => {
  const app = new Hono();
  app.use(rateLimiter({ windowMs: 60_000, limit: 2, standardHeaders: "draft-7", keyGenerator: () => "k", ...options }));
  app.get("/", (c) => c.text("ok"));
  app.get("/fails", (c) => c.text("no", 403));
  app.get("/throws", () => {
    throw new Error("thrown on purpose");
  });
  app.onError((_, c) => c.text("error", 500));
  return (path = "/") => app.request(path);
};

test("increment, decrement, get and resetKey", async () => {
  const s = store();
  s.init({ windowMs: 60_000, limit: 5 });
  assert.equal(await s.get("k"), undefined);
  for (let i = 1; i <= 7; i++) assert.equal((await s.increment("k")).totalHits, i);
  await s.decrement("k");
  const { totalHits, resetTime } = await s.get("k");
  assert.equal(totalHits, 6);
  assert.ok(resetTime > Date.now() + 50_000);
  await s.resetKey("k");
  await s.decrement("k");
  assert.equal((await s.increment("k")).totalHits, 1);
  assert.equal((await s.increment("other")).totalHits, 1);
});

test("a window ends", async () => {
  const s = store();
  s.init({ windowMs: 200, limit: 5 });
  await s.increment("k");
  await eventually("the window ends", async () => (await s.increment("k")).totalHits === 1);
});

test("a limiter refuses, with its headers", async () => {
  const ask = serve({ store: store() });
  assert.match((await ask()).headers.get("ratelimit"), /^limit=2, remaining=1, reset=\d+$/);
  await ask();
  const r = await ask();
  assert.equal(r.status, 429);
  assert.ok(Number(r.headers.get("retry-after")) > 50);
});

test("concurrent requests share the limit exactly", async () => {
  const ask = serve({ store: store(), limit: 50 });
  const all = await Promise.all(Array.from({ length: 200 }, () => ask()));
  assert.equal(all.filter((r) => r.status === 200).length, 50);
});

test("failed requests are skipped, also those that throw", async () => {
  const ask = serve({ store: store(), skipFailedRequests: true });
  for (let i = 0; i < 3; i++) assert.equal((await ask("/fails")).status, 403);
  for (let i = 0; i < 3; i++) assert.equal((await ask("/throws")).status, 500);
  assert.equal((await ask()).status, 200);
});

test("without a node", async () => {
  const dead = (onError) => serve({ store: new RlnodeStore({ nodes: ["http://127.255.1.2:4444"], onError }) });
  assert.equal((await dead()()).status, 500);
  assert.equal((await dead("open")()).status, 200);
  assert.equal((await dead("closed")()).status, 429);
  const ask = dead("local");
  assert.deepEqual([(await ask()).status, (await ask()).status, (await ask()).status], [200, 200, 429]);
});
