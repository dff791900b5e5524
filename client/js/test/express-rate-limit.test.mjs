import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import express from "express";
import { rateLimit } from "express-rate-limit";
import { RlnodeStore } from "rlnode/express-rate-limit";
import { closing, eventually, start } from "./node.mjs";

let node;
before(async () => (node = await start()));
after(() => node.stop());

let prefixes = 0;
const store = (options = {}) => {
  const s = new RlnodeStore({ nodes: [node.url], timeoutMs: 10_000, prefix: `p${++prefixes}:`, ...options });
  s.init({ windowMs: 60_000, limit: 5, ...options.init });
  return s;
};

/** serve runs an app with a limiter, and returns how to ask it. */
async function serve(t, options, more = (app) => app.get("/", (_, response) => response.send("ok"))) {
  const app = express();
  const errors = [];
  app.use(rateLimit({ windowMs: 60_000, limit: 2, standardHeaders: "draft-8", ...options }));
  more(app);
  // eslint-disable-next-line no-unused-vars
  app.use((e, _request, response, _next) => (errors.push(e), response.status(500).end()));
  const server = createServer(app);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => (server.closeAllConnections(), server.close()));
  return { ask: (path = "/") => fetch(`http://127.0.0.1:${server.address().port}${path}`), errors };
}

test("increment, decrement, get and resetKey", async () => {
  const s = store();
  assert.equal(await s.get("k"), undefined);
  const { totalHits, resetTime } = await s.increment("k");
  assert.equal(totalHits, 1);
  const left = resetTime - Date.now();
  assert.ok(left > 50_000 && left <= 60_100, `${left} ms`);
  assert.equal((await s.increment("k")).totalHits, 2);
  assert.equal((await s.get("k")).totalHits, 2);
  await s.decrement("k");
  assert.equal((await s.get("k")).totalHits, 1);
  for (let i = 0; i < 3; i++) await s.decrement("k"); // not below 0
  const none = await s.get("k");
  assert.equal(none.totalHits, 0);
  assert.ok(none.resetTime > Date.now());
  assert.equal((await s.increment("k")).totalHits, 1);
  await s.resetKey("k");
  assert.equal(await s.get("k"), undefined);
  assert.equal((await s.increment("k")).totalHits, 1);
  assert.equal(s.localKeys, false);
  s.shutdown();
  await assert.rejects(s.increment("k"), { code: "closed" });
});

test("hits above the limit are counted", async () => {
  const s = store();
  for (let i = 1; i <= 8; i++) assert.equal((await s.increment("k")).totalHits, i);
});

test("keys and prefixes", async () => {
  const [a, b] = [store(), store()];
  assert.equal((await a.increment("k")).totalHits, 1);
  assert.equal((await a.increment("other")).totalHits, 1);
  assert.equal((await b.increment("k")).totalHits, 1);
  const same = store({ prefix: a.prefix });
  assert.equal((await same.increment("k")).totalHits, 2);
  const long = "x".repeat(5000);
  assert.equal((await a.increment(long)).totalHits, 1);
  assert.equal((await a.increment(long)).totalHits, 2);
  for (const strange of ["::1", "2001:db8::/56", "ä\u{1F600}\n", "\ud800", ""]) assert.equal((await a.increment(strange)).totalHits, 1, strange);
});

test("a window begins with its first hit, and ends", async () => {
  const s = store({ init: { windowMs: 400 } });
  const { resetTime } = await s.increment("k");
  const again = await s.increment("k");
  assert.ok(Math.abs(again.resetTime - resetTime) < 100, "a hit does not prolong it");
  const fresh = await eventually("the window ends", async () => {
    const r = await s.increment("k");
    return r.totalHits === 1 && r;
  });
  assert.ok(fresh.resetTime - resetTime >= 300);
});

test("concurrent hits are all counted", async () => {
  const s = store();
  const hits = await Promise.all(Array.from({ length: 500 }, () => s.increment("k")));
  assert.deepEqual(hits.map((h) => h.totalHits).sort((a, b) => a - b), Array.from({ length: 500 }, (_, i) => i + 1));
});

test("a limiter refuses, with its headers", async (t) => {
  const { ask } = await serve(t, { store: store(), legacyHeaders: true });
  for (const remaining of ["1", "0"]) {
    const r = await ask();
    assert.deepEqual([r.status, r.headers.get("x-ratelimit-remaining")], [200, remaining]);
  }
  const r = await ask();
  assert.equal(r.status, 429);
  assert.ok(Number(r.headers.get("retry-after")) > 50);
  assert.match(r.headers.get("ratelimit"), /r=0/);
});

test("failed and successful requests are skipped", async (t) => {
  const routes = (app) => {
    app.get("/", (_, response) => response.send("ok"));
    app.get("/fails", (_, response) => response.status(403).end());
  };
  const skipsFailed = store();
  const failed = await serve(t, { store: skipsFailed, skipFailedRequests: true, keyGenerator: () => "k" }, routes);
  for (let i = 0; i < 4; i++) {
    assert.equal((await failed.ask("/fails")).status, 403);
    await eventually("the hit is taken back", async () => !(await skipsFailed.get("k"))?.totalHits);
  }
  assert.equal((await failed.ask()).status, 200);
  assert.equal((await skipsFailed.get("k")).totalHits, 1);
  const skipsGood = store();
  const good = await serve(t, { store: skipsGood, skipSuccessfulRequests: true, keyGenerator: () => "k" }, routes);
  await good.ask();
  await eventually("the hit is taken back", async () => !(await skipsGood.get("k"))?.totalHits);
});

test("without a node: the library's option, or the store's", async (t) => {
  const dead = { nodes: ["http://127.255.1.2:4444"] };
  const throws = await serve(t, { store: new RlnodeStore(dead) });
  assert.equal((await throws.ask()).status, 500);
  assert.equal(throws.errors[0].code, "unavailable");
  const passes = await serve(t, { store: new RlnodeStore(dead), passOnStoreError: true });
  assert.equal((await passes.ask()).status, 200);
  const open = await serve(t, { store: new RlnodeStore({ ...dead, onError: "open" }) });
  for (let i = 0; i < 4; i++) assert.equal((await open.ask()).status, 200);
  const shut = await serve(t, { store: new RlnodeStore({ ...dead, onError: "closed" }) });
  assert.equal((await shut.ask()).status, 429);
  const local = await serve(t, { store: new RlnodeStore({ ...dead, onError: "local" }) });
  assert.deepEqual([(await local.ask()).status, (await local.ask()).status, (await local.ask()).status], [200, 200, 429]);
  await new RlnodeStore(dead).decrement("k"); // after the answer: nobody would catch
});

test("without a node: what the client says that a store is given", async () => {
  const { RlnodeClient } = await import("rlnode");
  const hits = async (onError, own) => {
    const s = new RlnodeStore({ client: new RlnodeClient({ nodes: "http://127.255.1.2:4444", onError, local: { limit: 9, per: "1h" } }), onError: own });
    s.init({ windowMs: 60_000, limit: 5 });
    await s.increment("k");
    return (await s.increment("k")).totalHits;
  };
  assert.deepEqual([await hits("open"), await hits("closed"), await hits("local")], [1, Number.MAX_SAFE_INTEGER, 2]);
  await assert.rejects(hits(undefined), { code: "unavailable" });
  assert.equal(await hits(undefined, "open"), 1);
});

test("what can't be honoured is refused by name", () => {
  for (const windowMs of [5, 0, 400 * 86_400_000, NaN]) assert.throws(() => store({ init: { windowMs } }), /windowMs/);
  assert.throws(() => new RlnodeStore({}), /nodes/);
  assert.throws(() => new RlnodeStore({ nodes: ["ftp://x"] }), /nodes/);
  assert.throws(() => new RlnodeStore({ nodes: [node.url], onError: "maybe" }), /onError/);
});

test("a limit that is a function, and one of 0", async (t) => {
  const many = await serve(t, { store: store(), limit: () => 3 });
  assert.deepEqual([await many.ask(), await many.ask(), await many.ask(), await many.ask()].map((r) => r.status), [200, 200, 200, 429]);
  const none = await serve(t, { store: store(), limit: 0 });
  assert.equal((await none.ask()).status, 429);
});

test("a client of one's own stays open", async (t) => {
  const { RlnodeClient } = await import("rlnode");
  const client = closing(t, new RlnodeClient({ nodes: node.url, timeoutMs: 10_000 }));
  const s = store({ client });
  assert.equal((await s.increment("k")).totalHits, 1);
  s.shutdown();
  assert.equal((await s.increment("k")).totalHits, 2);
});
