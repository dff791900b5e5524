// Slots beside servers that do what a test wants, and in middlewares over connections that are cut.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { connect } from "node:net";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { serve as serveHono } from "@hono/node-server";
import express from "express";
import Fastify from "fastify";
import { Hono } from "hono";
import { RefusedError, RlnodeClient } from "rlnode";
import { rateLimit as forExpress } from "rlnode/express";
import { rateLimit as forFastify } from "rlnode/fastify";
import { rateLimit as forFetch } from "rlnode/fetch";
import { rateLimit as forHono } from "rlnode/hono";
import { eventually } from "./node.mjs";

const held = { allowed: true, rule: "r", limit: 2, used: 1, remaining: 1, unit: "requests", ttl_ms: 3000, reset_after_ms: 3000, retry_after_ms: 0, delay_ms: 0, decided_by: "owner", node: "n", rules_version: 1, slot: "abc", expires_ms: 30_000 }; // prettier-ignore
const full = { ...held, allowed: false, used: 2, remaining: 0, retry_after_ms: 1500, code: "rate-limited", detail: "All are held.", slot: undefined, expires_ms: undefined }; // prettier-ignore
const problem = (status, code) => [status, { type: "about:blank", title: "x", status, code, detail: "why" }];

/** fake answers as `on` says, by the last part of the path: [status, body], or a promise of it. */
async function fake(t, on = {}) {
  const self = {
    calls: [],
    on: { acquire: () => [200, held], renew: () => [200, { expires_ms: 30_000 }], release: () => [200, { released: true }], settle: () => [200, { settled: true }], ...on }, // prettier-ignore
    count: (name) => self.calls.filter((c) => c.name === name).length,
    names: () => self.calls.map((c) => c.name),
  };
  const server = createServer(async (request, response) => {
    let text = "";
    for await (const chunk of request) text += chunk;
    const name = request.url.split("/").at(-1);
    if (name === "readyz") return response.end();
    self.calls.push({ name, body: JSON.parse(text) });
    const [status, body] = await self.on[name](self.calls.at(-1).body);
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(body));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  self.url = `http://127.0.0.1:${server.address().port}`;
  t.after(() => (server.closeAllConnections(), server.close()));
  return self;
}

const make = (t, s, options) => {
  const c = new RlnodeClient({ nodes: s.url, timeoutMs: 20_000, log: () => {}, ...options });
  t.after(() => c.close());
  return c;
};
const q = { rule: "r", key: "k" };

test("a slot renews itself until it is released", async (t) => {
  const s = await fake(t, { acquire: () => [200, { ...held, expires_ms: 3000 }], renew: () => [200, { expires_ms: 150 }] });
  const slot = await make(t, s).acquire({ ...q, n: 2, who: "me", ttlMs: 3000 });
  const { request_id: id, ...sent } = s.calls[0].body;
  assert.ok(id);
  assert.deepEqual(sent, { rule: "r", key: "k", n: 2, who: "me", ttl_ms: 3000 });
  assert.deepEqual([slot.allowed, slot.slot, slot.ttlMs, slot.signal.aborted], [true, "abc", 3000, false]);
  await eventually("it was renewed", () => s.count("renew") >= 1);
  const all = await Promise.all([slot.release(), slot.release()]);
  assert.deepEqual([all, slot.signal.aborted], [[true, true], true]);
  const renewals = s.count("renew");
  await new Promise((resolve) => setTimeout(resolve, 200));
  assert.deepEqual([s.count("renew"), s.count("release")], [renewals, 1]);
  assert.deepEqual(s.calls.at(-1), { name: "release", body: { slot: "abc" } });
});

test("a slot that is over is lost", async (t) => {
  const s = await fake(t, { acquire: () => [200, { ...held, expires_ms: 150 }], renew: () => problem(404, "unknown-slot") });
  const slot = await make(t, s).acquire(q);
  await eventually("it is lost", () => slot.signal.aborted);
  assert.equal(slot.signal.reason.code, "slot-lost");
  assert.equal(await slot.release(), true);
  assert.equal(s.count("release"), 0);
});

for (const [name, renew] of Object.entries({ "try again": () => problem(503, "try-again"), "no answer": () => new Promise(() => {}), "no JSON": () => [200, "x"] }))
  test(`a slot that is not renewed in time is lost: ${name}`, async (t) => {
    const s = await fake(t, { acquire: () => [200, { ...held, expires_ms: 1800 }], renew });
    const began = performance.now();
    const slot = await make(t, s).acquire(q);
    await new Promise((resolve) => slot.signal.addEventListener("abort", resolve));
    assert.ok(performance.now() - began > 1790, "too early");
    assert.equal(slot.signal.reason.code, "slot-lost");
    assert.ok(s.count("renew") >= 1 && s.count("renew") < 100);
    assert.equal(await slot.release(), true);
  });

test("withSlot releases however its work ends", async (t) => {
  const s = await fake(t);
  const c = make(t, s);
  assert.equal(await c.withSlot(q, (signal, slot) => (assert.ok(!signal.aborted), slot.slot)), "abc");
  await assert.rejects(c.withSlot(q, () => { throw new Error("it fails"); }), /it fails/); // prettier-ignore
  await assert.rejects(c.withSlot(q, () => Promise.reject(new Error("later"))), /later/);
  const disposed = await c.acquire(q);
  await disposed[Symbol.asyncDispose]();
  assert.deepEqual(s.names(), ["acquire", "release", "acquire", "release", "acquire", "release", "acquire", "release"]);
});

test("a refusal, and waiting for a slot", async (t) => {
  const s = await fake(t, { acquire: () => [429, full] });
  const c = make(t, s);
  const slot = await c.acquire(q);
  assert.deepEqual([slot.allowed, slot.slot, slot.retryAfterMs, slot.reason, slot.signal.aborted], [false, "", 1500, "All are held.", true]);
  await assert.rejects(c.withSlot(q, () => assert.fail()), (e) => e instanceof RefusedError && e.decision.retryAfterMs === 1500 && e.httpStatus === 429);
  const waiting = c.acquire({ ...q, wait: true });
  await eventually("it asks again", () => s.count("acquire") > 4);
  s.on.acquire = () => [200, held];
  assert.equal(await (await waiting).release(), true);
  s.on.acquire = () => [429, full];
  const stop = new AbortController();
  const stopped = c.acquire({ ...q, wait: true }, { signal: stop.signal });
  stop.abort(new Error("enough"));
  await assert.rejects(stopped, /enough/);
});

test("waiting for a slot ends with the client", async (t) => {
  const s = await fake(t, { acquire: () => [429, full] });
  const c = make(t, s);
  const waiting = c.acquire({ ...q, wait: true });
  await eventually("its pauses are long", () => s.count("acquire") > 6);
  const began = performance.now();
  c.close();
  await assert.rejects(waiting, { code: "closed" });
  assert.ok(performance.now() - began < 700); // a pause is a second long by now
});

test("no node decides", async (t) => {
  for (const [options, allowed] of [[{}, true], [{ onError: "closed" }, false]]) { // prettier-ignore
    const s = await fake(t, { acquire: () => problem(503, "too-many-slots") });
    const slot = await make(t, s, options).acquire(q);
    assert.deepEqual([slot.allowed, slot.slot, slot.error.code, slot.signal.aborted], [allowed, "", "too-many-slots", !allowed]);
    assert.equal(await slot.release(), true);
    assert.deepEqual(s.names(), ["acquire"]);
  }
  const down = await fake(t, { acquire: () => problem(503, "too-many-slots") });
  const local = make(t, down, { onError: "local", local: { limit: 1, per: "1m" } });
  const alone = await local.acquire({ key: "k", limits: [{ limit: 1, ttl: "1s", algorithm: "concurrency" }] });
  assert.deepEqual([alone.allowed, alone.decidedBy, alone.retryAfterMs], [false, "local", 1000]);
  // It is a refusal of the limiter, and no failure, as in Go and Python.
  const serve = forFetch({ client: local, slots: true, rule: "r", key: () => "k", cost: () => 2 })(() => assert.fail());
  assert.equal((await serve(new Request("http://x/"))).status, 429);
  const s = await fake(t, { acquire: () => problem(400, "bad-value") });
  await assert.rejects(make(t, s).acquire(q), { code: "bad-value" });
});

test("a call that is repeated, at another node, has one id", async (t) => {
  const first = await fake(t, { acquire: () => problem(503, "try-again") });
  const second = await fake(t);
  const slot = await make(t, first, { nodes: [first.url, second.url] }).acquire(q);
  assert.deepEqual(first.calls[0].body, second.calls[0].body);
  await slot.release();
});

test("a slot that is granted to a caller who has gone is released", async (t) => {
  let answer;
  const s = await fake(t, { acquire: () => new Promise((resolve) => (answer = () => resolve([200, held]))) });
  const stop = new AbortController();
  const call = make(t, s).acquire(q, { signal: stop.signal });
  await eventually("it is asked", () => answer);
  stop.abort(new Error("gone"));
  await assert.rejects(call, /gone/);
  answer();
  await eventually("it is released", () => s.count("release") === 1);
});

test("a reservation that is made for a caller who has gone is settled", async (t) => {
  for (const also of [held, { ...held, slot: undefined, expires_ms: undefined }]) {
    let answer;
    const s = await fake(t, { reserve: () => new Promise((resolve) => (answer = () => resolve([200, { ...also, reservation: "def" }]))) });
    const stop = new AbortController();
    const call = make(t, s).reserve(q, { signal: stop.signal });
    await eventually("it is asked", () => answer);
    stop.abort(new Error("gone"));
    await assert.rejects(call, /gone/);
    answer();
    await eventually("it is settled", () => s.count("settle") === 1);
    assert.deepEqual(s.calls.at(-1), { name: "settle", body: { reservation: "def", costs: {} } });
  }
});

test("a call that ends with a lost slot is not allowed by onError", async (t) => {
  const s = await fake(t, { acquire: () => [200, { ...held, expires_ms: 300 }], renew: () => problem(404, "unknown-slot"), check: () => new Promise(() => {}) });
  const c = make(t, s, { onError: "open" });
  const { signal } = await c.acquire(q);
  await assert.rejects(c.check(q, { signal }), { code: "slot-lost" });
  await assert.rejects(c.acquire(q, { signal }), { code: "slot-lost" });
});

test("the signal of the call ends that of the slot, which is held until it is released", async (t) => {
  const s = await fake(t, { acquire: () => [200, { ...held, expires_ms: 4000 }], renew: () => [200, { expires_ms: 4000 }] });
  const stop = new AbortController();
  const slot = await make(t, s).acquire(q, { signal: stop.signal });
  stop.abort(new Error("gone"));
  assert.match(slot.signal.reason.message, /gone/);
  await eventually("it is renewed", () => s.count("renew") >= 2);
  await slot.release();
  assert.equal(s.count("release"), 1);
});

test("close releases what is held", async (t) => {
  const s = await fake(t);
  const c = make(t, s);
  const slots = await Promise.all([c.acquire(q), c.acquire(q), c.acquire(q)]);
  await slots[0].release();
  await c.close();
  assert.equal(s.count("release"), 3);
  assert.ok(slots.every((slot) => slot.signal.aborted));
  await assert.rejects(c.acquire(q), { code: "closed" });
});

test("a reservation's slot is renewed until it is settled", async (t) => {
  const s = await fake(t, { reserve: () => [200, { ...held, reservation: "def", expires_ms: 4000 }], renew: () => [200, { expires_ms: 4000 }] });
  const c = make(t, s);
  const { reservation, signal } = await c.reserve(q);
  await eventually("it is renewed", () => s.count("renew") >= 2);
  assert.equal(signal.aborted, false);
  await c.settle(reservation, {});
  assert.equal(signal.aborted, true);
  const renewals = s.count("renew");
  await new Promise((resolve) => setTimeout(resolve, 150));
  assert.deepEqual([s.count("renew"), s.count("release")], [renewals, 0]);
});

test("a reservation's slot is renewed during its delay", async (t) => {
  const short = { ...held, reservation: "def", expires_ms: 3000, delay_ms: 3500 };
  const s = await fake(t, { reserve: () => [200, short], renew: () => [200, { expires_ms: 20_000 }] });
  const c = make(t, s);
  const { signal } = await c.reserve({ ...q, wait: true });
  assert.deepEqual([s.count("renew"), signal.aborted], [1, false]);
  s.on.reserve = () => [200, { ...short, reservation: "ghi", slot: "late", expires_ms: 30_000, delay_ms: 30_000 }];
  const waiting = c.reserve({ ...q, wait: true });
  await eventually("it is reserved", () => s.count("reserve") === 2);
  await new Promise((resolve) => setTimeout(resolve, 100));
  c.close();
  await assert.rejects(waiting, { code: "closed" });
  await eventually("it is released", () => s.calls.some((call) => call.name === "release" && call.body.slot === "late"));
});

test("a reservation whose caller goes during its delay is settled", async (t) => {
  const s = await fake(t, { reserve: () => [200, { ...held, reservation: "def", delay_ms: 30_000 }] });
  const stop = new AbortController();
  const waiting = make(t, s).reserve({ ...q, wait: true }, { signal: stop.signal });
  await eventually("it is asked", () => s.count("reserve"));
  setTimeout(() => stop.abort(new Error("gone")), 100);
  await assert.rejects(waiting, /gone/);
  await eventually("it is settled", () => s.count("settle") === 1);
});

test("a reservation that is never settled is forgotten once its slot is lost", async (t) => {
  const s = await fake(t, { reserve: () => [200, { ...held, reservation: "def", expires_ms: 150 }], renew: () => problem(404, "unknown-slot") });
  const c = make(t, s);
  const lost = async () => {
    const { signal } = await c.reserve(q);
    if (!signal.aborted) await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
    return new WeakRef(signal);
  };
  const signals = await Promise.all([lost(), lost(), lost()]);
  setFlagsFromString("--expose-gc");
  const gc = runInNewContext("gc");
  await eventually("nothing of them is kept", () => (gc(), signals.every((one) => !one.deref())), 5000);
});

for (const kind of ["fetch", "hono"])
  test(`${kind}: a caller that hangs up while a slot is acquired does not hold it`, async (t) => {
    const s = await fake(t, { acquire: () => new Promise((resolve) => setTimeout(resolve, 100, [200, held])) });
    const options = { client: make(t, s), slots: true, ip: () => "192.0.2.1" };
    let served = 0;
    const work = () => (served++, new Promise(() => {}));
    const serve = kind === "fetch" ? forFetch(options)(work) : new Hono().use(forHono(options)).get("/", work).request;
    const stop = new AbortController();
    const answer = serve(new Request("http://x/", { signal: stop.signal }));
    setTimeout(() => stop.abort(), 20);
    assert.equal((await answer).status, 503);
    await eventually("it is released", () => s.count("release") === 1);
    assert.equal(served, 0);
  });

for (const kind of ["fetch", "hono"])
  test(`${kind}: the body of an answer to a HEAD is never read, so its slot does not wait for that`, async (t) => {
    const s = await fake(t, { acquire: () => [200, held] });
    const options = { client: make(t, s), slots: true, ip: () => "192.0.2.1" };
    const work = () => new Response("never read");
    const serve = kind === "fetch" ? forFetch(options)(work) : new Hono().use(forHono(options)).get("/", work).request;
    assert.equal((await serve(new Request("http://x/", { method: "HEAD" }))).status, 200);
    await eventually("it is released", () => s.count("release") === 1);
  });

test("a caller that hangs up during a delay does not hold a slot", async (t) => {
  const s = await fake(t, { acquire: () => [200, { ...held, delay_ms: 20_000 }] });
  const stop = new AbortController();
  const serve = forFetch({ client: make(t, s), slots: true, ip: () => "192.0.2.1" })(() => assert.fail());
  const answer = serve(new Request("http://x/", { signal: stop.signal }));
  await eventually("it is acquired", () => s.count("acquire"));
  setTimeout(() => stop.abort(), 100);
  assert.equal((await answer).status, 503);
  await eventually("it is released", () => s.count("release") === 1);
});

/** What an app does with a path. At /times-out, Node cuts a connection on which nothing is sent. */
const apps = {
  express(options, began) {
    const app = express();
    app.use(forExpress(options));
    app.get("/", (_, response) => response.send("ok"));
    app.get("/fails", () => { throw new Error("it fails"); }); // prettier-ignore
    app.get("/waits", () => began());
    app.get("/streams", (_, response) => (response.write("some"), began()));
    app.get("/times-out", (_, response) => (response.setTimeout(100), began()));
    app.use((e, _request, response, _next) => response.status(500).send(e.message)); // eslint-disable-line no-unused-vars
    return createServer(app);
  },
  async fastify(options, began) {
    const app = Fastify();
    await app.register(forFastify, options);
    app.get("/", () => "ok");
    app.get("/fails", () => { throw new Error("it fails"); }); // prettier-ignore
    app.get("/waits", () => (began(), new Promise(() => {})));
    app.get("/streams", (_, reply) => (reply.hijack(), reply.raw.write("some"), began()));
    app.get("/times-out", (_, reply) => (reply.raw.setTimeout(100), began(), new Promise(() => {})));
    await app.ready();
    return app.server;
  },
  hono: (options, began) => overHono((app) => app.use(forHono(options)), began),
  fetch(options, began) {
    const limit = forFetch({ ...options, ip: () => "192.0.2.1" });
    return overHono((app) => app.use(async (c, next) => {
      c.res = await limit(async () => (await next(), c.res))(c.req.raw);
    }), began); // prettier-ignore
  },
};

function overHono(use, began) {
  const app = new Hono();
  use(app);
  app.get("/", (c) => c.text("ok"));
  app.get("/fails", () => { throw new Error("it fails"); }); // prettier-ignore
  app.get("/waits", () => (began(), new Promise(() => {})));
  app.get("/streams", () => new Response(new ReadableStream({ start: (out) => (out.enqueue(new TextEncoder().encode("some")), began()) })));
  app.get("/times-out", (c) => (c.env.outgoing.setTimeout(100), began(), new Promise(() => {})));
  app.onError((e, c) => c.text(e.message, 500));
  return serveHono({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" });
}

for (const [name, app] of Object.entries(apps))
  test(`${name} holds slots for the length of the response`, async (t) => {
    const s = await fake(t);
    let begun = 0;
    const server = await app({ nodes: s.url, timeoutMs: 20_000, slots: true, slotTtlMs: 3000 }, () => void begun++);
    if (!server.listening) await new Promise((resolve) => (server.listening ? resolve() : server.listen(0, "127.0.0.1", resolve)));
    t.after(() => (server.closeAllConnections(), server.close()));
    const { port } = server.address();
    const released = (n) => eventually(`${n} are released: ${s.names()}`, () => s.count("release") === n);
    assert.equal(await (await fetch(`http://127.0.0.1:${port}/`)).text(), "ok");
    assert.equal(s.calls[0].body.ttl_ms, 3000);
    await released(1);
    assert.equal((await fetch(`http://127.0.0.1:${port}/fails`)).status, 500);
    await released(2);
    for (const path of ["/waits", "/streams"]) {
      begun = 0;
      const socket = connect(port, "127.0.0.1");
      socket.write(`GET ${path} HTTP/1.1\r\nHost: x\r\n\r\n`);
      await eventually("it is served", () => begun);
      assert.equal(s.count("release"), s.count("acquire") - 1, "it is released while it is under way");
      socket.destroy();
      await released(s.count("acquire"));
    }
    begun = 0;
    await assert.rejects(fetch(`http://127.0.0.1:${port}/times-out`));
    assert.equal(begun, 1);
    await released(s.count("acquire"));
    s.on.acquire = () => [429, full];
    const r = await fetch(`http://127.0.0.1:${port}/`);
    assert.deepEqual([r.status, r.headers.get("retry-after"), (await r.json()).detail], [429, "2", "All are held."]);
    assert.equal(s.count("release"), s.count("acquire") - 1);
  });
