import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import rateLimit from "@fastify/rate-limit";
import Fastify from "fastify";
import { RlnodeStore } from "rlnode/fastify-rate-limit";
import { eventually, start } from "./node.mjs";

let node;
before(async () => (node = await start()));
after(() => node.stop());

let prefixes = 0;
const given = () => ({ nodes: [node.url], timeoutMs: 10_000, prefix: `p${++prefixes}:` });

async function serve(t, options, routes = (app) => app.get("/", () => "ok")) {
  const app = Fastify();
  t.after(() => app.close());
  await app.register(rateLimit, { max: 2, timeWindow: 60_000, store: RlnodeStore.with(given()), ...options });
  routes(app);
  return (url = "/") => app.inject(url);
}

const call = (store, method, ...args) =>
  new Promise((resolve, reject) => store[method](args[0], (e, result) => (e ? reject(e) : resolve(result)), ...args.slice(1)));

test("incr and read", async () => {
  const s = new RlnodeStore(given());
  assert.deepEqual(await call(s, "read", "k", 60_000, 2), { current: 0, ttl: 0 });
  for (let i = 1; i <= 4; i++) {
    const { current, ttl } = await call(s, "incr", "k", 60_000, 2);
    assert.equal(current, i);
    assert.ok(ttl > 50_000 && ttl <= 60_000);
  }
  assert.equal((await call(s, "read", "k", 60_000, 2)).current, 4);
  assert.equal((await call(s, "incr", "other", 60_000, 2)).current, 1);
});

test("a window ends", async () => {
  const s = new RlnodeStore(given());
  await call(s, "incr", "k", 200, 2);
  await eventually("the window ends", async () => (await call(s, "incr", "k", 200, 2)).current === 1);
});

test("concurrent hits are all counted", async () => {
  const s = new RlnodeStore(given());
  const all = await Promise.all(Array.from({ length: 300 }, () => call(s, "incr", "k", 60_000, 10)));
  assert.deepEqual(all.map((r) => r.current).sort((a, b) => a - b), Array.from({ length: 300 }, (_, i) => i + 1));
});

test("the plugin refuses, with its headers", async (t) => {
  const ask = await serve(t, {});
  const r = await ask();
  assert.deepEqual([r.statusCode, r.headers["x-ratelimit-limit"], r.headers["x-ratelimit-remaining"]], [200, "2", "1"]);
  await ask();
  const refused = await ask();
  assert.equal(refused.statusCode, 429);
  assert.ok(Number(refused.headers["retry-after"]) > 50);
});

test("routes count for themselves, a ban comes, and keys differ", async (t) => {
  const ask = await serve(t, { ban: 1, keyGenerator: (request) => request.query.k ?? "none" }, (app) => {
    app.get("/", () => "ok");
    app.get("/own", { config: { rateLimit: { max: 1, timeWindow: 30_000 } } }, () => "own");
  });
  assert.deepEqual([await ask("/own"), await ask("/own")].map((r) => r.statusCode), [200, 429]);
  const statuses = [];
  for (let i = 0; i < 4; i++) statuses.push((await ask()).statusCode);
  assert.deepEqual(statuses, [200, 200, 429, 403]);
  assert.equal((await ask("/?k=b")).statusCode, 200);
});

test("limits that are functions, and a look without a hit", async (t) => {
  const ask = await serve(t, { max: () => 1, timeWindow: () => 45_000 }, (app) => {
    app.get("/", () => "ok");
    const look = app.createRateLimit({ max: 3, timeWindow: 60_000 });
    app.get("/look", { config: { rateLimit: false } }, async (request) => {
      const first = await look(request);
      return { first, second: await look(request, { increment: false }) };
    });
  });
  assert.deepEqual([(await ask()).statusCode, (await ask()).statusCode], [200, 429]);
  const { first, second } = (await ask("/look")).json();
  assert.deepEqual([first.remaining, second.remaining], [2, 2]);
});

test("without a node", async (t) => {
  const dead = (onError) => RlnodeStore.with({ nodes: "http://127.255.1.2:4444", onError });
  assert.equal((await (await serve(t, { store: dead() }))()).statusCode, 500);
  assert.equal((await (await serve(t, { store: dead(), skipOnError: true }))()).statusCode, 200);
  assert.equal((await (await serve(t, { store: dead("open") }))()).statusCode, 200);
  assert.equal((await (await serve(t, { store: dead("closed") }))()).statusCode, 429);
});

test("what can't be honoured is refused by name", async (t) => {
  for (const name of ["continueExceeding", "exponentialBackoff"]) {
    await assert.rejects(serve(t, { [name]: true }), new RegExp(name));
    const route = (app) => app.get("/", { config: { rateLimit: { [name]: true } } }, () => "ok");
    await assert.rejects(serve(t, {}, route).then((ask) => ask()), new RegExp(name));
  }
  await assert.rejects(call(new RlnodeStore(given()), "incr", "k", 5, 2), /timeWindow/);
  assert.throws(() => new RlnodeStore({}), /nodes/);
});
