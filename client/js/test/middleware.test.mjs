// The middlewares, by the server's rules.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { serve as serveHono } from "@hono/node-server";
import express from "express";
import Fastify from "fastify";
import { Hono } from "hono";
import { rateLimit as forExpress } from "rlnode/express";
import { rateLimit as forFastify } from "rlnode/fastify";
import { rateLimit as forFetch } from "rlnode/fetch";
import { rateLimit as forHono } from "rlnode/hono";
import { eventually, start } from "./node.mjs";

const rules = `version: 1
lists:
  deny: [{ip: 203.0.113.66}]
rules:
  - {name: address, key: [ip], match: {endpoint: "/address*"}, limits: [{limit: 2, per: 1h, algorithm: fixed-window}]}
  - {name: login, match: {endpoint: /login, method: POST}, key: [ip], limits: [{limit: 1, per: 1h, algorithm: fixed-window}]}
  - {name: pay, match: {endpoint: /pay}, key: [ip], limits: [{limit: 1, per: 1h}], refusal: {status: 402, headers: {X-Why: "{rule}"}, body: "Pay."}}
  - {name: busy, match: {endpoint: /busy}, key: [ip], limits: [{limit: 1, per: 1h}], refusal: {status: 503, body: {snake_case: "{limit}"}}}
  - {name: slow, match: {endpoint: /slow}, key: [ip], limits: [{limit: 1, per: 1h}], refusal: {title: Slow, code: too-fast}}
  - {name: user, match: {plan: none}, key: [user], limits: [{limit: 3, per: 1h, algorithm: fixed-window}]}
  - {name: paced, match: {endpoint: /paced}, key: [ip], limits: [{limit: 1, per: 300ms, algorithm: fixed-window}], on_limit: delay, max_delay: 20s}
`;

let node;
before(async () => (node = await start({ rules })));
after(() => node.stop());

let n = 0;
const address = () => `198.51.${100 + (n >> 8)}.${++n & 255}`; // another for each use

/** apps are the frameworks: each makes a server of a middleware's options, and calls `seen` with a decision that let a request pass. */
const apps = {
  express(t, options, seen) {
    const app = express();
    app.set("trust proxy", 1);
    app.use(forExpress(options));
    app.use((request, response) => (seen(request.rlnode), response.send("ok")));
    app.use((e, _request, response, _next) => response.status(500).send(e.message)); // eslint-disable-line no-unused-vars
    return listen(t, createServer(app));
  },
  connect(t, options, seen) {
    const limit = forExpress({ ip: (r) => r.headers["x-forwarded-for"] ?? r.socket.remoteAddress, ...options });
    const server = createServer((request, response) =>
      limit(request, response, (e) => {
        if (!e) seen(request.rlnode);
        response.statusCode = e ? 500 : 200;
        response.end(e?.message ?? "ok");
      }),
    );
    return listen(t, server);
  },
  async fastify(t, options, seen) {
    const app = Fastify({ trustProxy: true });
    await app.register(forFastify, options);
    app.all("/*", (request) => (seen(request.rlnode), "ok"));
    t.after(() => app.close());
    return app.listen({ port: 0, host: "127.0.0.1" });
  },
  hono(t, options, seen) {
    const app = new Hono();
    app.use(forHono({ trustedHops: 1, ...options }));
    app.all("/*", (c) => (seen(c.get("rlnode")), c.text("ok")));
    app.onError((e, c) => c.text(e.message, 500));
    return new Promise((resolve) => {
      const server = serveHono({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }, ({ port }) => resolve(`http://127.0.0.1:${port}`));
      t.after(() => (server.closeAllConnections(), server.close()));
    });
  },
  fetch(t, options) {
    const handle = forFetch({ trustedHops: 1, ...options })((_, more) => new Response(more));
    const app = new Hono();
    app.all("/*", async (c) => {
      try {
        return await handle(c.req.raw, "ok");
      } catch (e) {
        return c.text(e.message, 500);
      }
    });
    return new Promise((resolve) => {
      const server = serveHono({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }, ({ port }) => resolve(`http://127.0.0.1:${port}`));
      t.after(() => (server.closeAllConnections(), server.close()));
    });
  },
};

async function listen(t, server) {
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => (server.closeAllConnections(), server.close()));
  return `http://127.0.0.1:${server.address().port}`;
}

for (const [name, serve] of Object.entries(apps)) {
  const run = async (t, options = {}, seen = () => {}) => {
    const url = await serve(t, { nodes: [node.url], timeoutMs: 10_000, ...options }, seen);
    return (path, ip, init = {}) => fetch(url + path, { ...init, headers: { "x-forwarded-for": ip, ...init.headers } });
  };

  test(`${name}: the server's rules, with its headers`, async (t) => {
    const passed = [];
    const ask = await run(t, {}, (d) => passed.push(d));
    const ip = address();
    for (const left of [1, 0]) {
      const r = await ask("/address?query", ip);
      assert.deepEqual([r.status, await r.text()], [200, "ok"]);
      assert.equal(r.headers.get("ratelimit-policy"), '"address";q=2;w=3600');
      assert.match(r.headers.get("ratelimit"), new RegExp(`^"address";r=${left};t=\\d+$`));
      assert.equal(r.headers.get("x-ratelimit-remaining"), String(left));
      assert.equal(r.headers.get("retry-after"), null);
    }
    const r = await ask("/address", ip);
    assert.equal(r.status, 429);
    assert.ok(Number(r.headers.get("retry-after")) > 1);
    assert.match(r.headers.get("ratelimit"), /^"address";r=0/);
    assert.match(r.headers.get("content-type"), /^application\/problem\+json/);
    assert.equal(r.headers.get("cache-control"), "no-store");
    const problem = await r.json();
    assert.deepEqual([problem.status, problem["violated-policies"]], [429, ["address"]]);
    assert.match(problem.detail, /2 requests per 1h/);
    assert.equal((await ask("/address", address())).status, 200);
    if (name !== "fetch") assert.deepEqual(passed.map((d) => d.rule), ["address", "address", "address"]); // prettier-ignore
  });

  test(`${name}: a denied request gets 403, and methods count`, async (t) => {
    const ask = await run(t);
    const denied = await ask("/", "203.0.113.66");
    assert.deepEqual([denied.status, (await denied.json()).code, denied.headers.get("retry-after")], [403, "denied", null]);
    const ip = address();
    assert.equal((await ask("/login", ip)).status, 200);
    const statuses = [];
    for (let i = 0; i < 2; i++) statuses.push((await ask("/login", ip, { method: "POST" })).status);
    assert.deepEqual(statuses, [200, 429]);
  });

  test(`${name}: a rule's refusal is the answer`, async (t) => {
    const ask = await run(t);
    const ip = address();
    for (const [path, status, type, body] of [
      ["/pay", 402, /^text\/plain/, /^Pay\.$/],
      ["/busy", 503, /^application\/json/, /^{"snake_case":"1"}$/],
      ["/slow", 429, /^application\/problem\+json/, /"title":"Slow"/],
    ]) {
      assert.equal((await ask(path, ip)).status, 200);
      const all = await Promise.all(Array.from({ length: 8 }, () => ask(path, ip))); // some share a request
      for (const r of all) {
        assert.equal(r.status, status);
        assert.match(r.headers.get("content-type"), type);
        assert.equal(r.headers.get("x-why"), path === "/pay" ? "pay" : null);
        assert.match(await r.text(), path === "/slow" ? /"title":"Slow".*"code":"too-fast"/ : body);
      }
    }
  });

  test(`${name}: one rule by key, costs, requests that are skipped, no headers`, async (t) => {
    const url = (r) => r.url ?? r.req.url;
    const ask = await run(t, { rule: "user", key: () => `user-${name}`, cost: () => 2, skip: (r) => url(r).includes("skip"), headers: false });
    const one = await ask("/", "192.0.2.1");
    assert.deepEqual([one.status, one.headers.get("ratelimit")], [200, null]);
    assert.equal((await ask("/skip", "192.0.2.1")).status, 200);
    const two = await ask("/", "192.0.2.1");
    assert.equal(two.status, 429);
    assert.ok(two.headers.get("retry-after"));
  });

  test(`${name}: without a node, and with a rule that is not there`, async (t) => {
    const dead = { nodes: ["http://127.255.1.2:4444"] };
    const open = await run(t, { ...dead, onError: "open" });
    assert.equal((await open("/", "192.0.2.1")).status, 200);
    const shut = await run(t, { ...dead, onError: "closed" });
    const r = await shut("/", "192.0.2.1");
    assert.deepEqual([r.status, r.headers.get("retry-after")], [503, "1"]);
    const local = await run(t, { ...dead, onError: "local", local: { limit: 1, per: "1m" } });
    assert.equal((await local("/", "192.0.2.1")).status, 200);
    const second = await local("/", "192.0.2.1");
    assert.deepEqual([second.status, second.headers.get("retry-after")], [429, "60"]);
    const nonsense = { rule: "nonsense", log: () => {} };
    assert.equal((await (await run(t, nonsense))("/", "192.0.2.1")).status, 200); // as onError says: the operator's mistake
    assert.equal((await (await run(t, { ...nonsense, onError: "closed" }))("/", "192.0.2.1")).status, 503);
    const wrong = await (await run(t, { rule: "user", key: () => ({}), log: () => {} }))("/", "192.0.2.1");
    assert.equal(wrong.status, 503);
    assert.match(wrong.headers.get("content-type"), /^application\/problem\+json/);
  });

  test(`${name}: a key that is missing`, async (t) => {
    const ask = async (missingKey, key) => {
      const r = await (await run(t, { rule: "user", key: () => key, missingKey }))("/", "192.0.2.1");
      return [r.status, r.status === 400 ? (await r.json()).code : (await r.text(), r.headers.get("ratelimit") !== null)];
    };
    for (const absent of [undefined, null, "", [null], [""]]) {
      assert.deepEqual(await ask(undefined, absent), [400, "missing-key"]);
      assert.deepEqual(await ask("refuse", absent), [400, "missing-key"]);
      assert.deepEqual(await ask("allow", absent), [200, false]);
      assert.deepEqual(await ask("error", absent), [500, false]);
    }
    assert.deepEqual(await ask("anonymous-" + name, undefined), [200, true]);
    const statuses = [];
    for (let i = 0; i < 3; i++) statuses.push((await ask(undefined, "anonymous-" + name))[0]);
    assert.deepEqual(statuses, [200, 200, 429]); // of three, one was used
    assert.equal((await ask("refuse", 70 + name.length))[0], 200);
  });
}

test("a delayed request is held, and refused if it would be held too long", async (t) => {
  const url = await apps.express(t, { nodes: node.url, timeoutMs: 10_000, maxDelayMs: 1000 }, () => {});
  const ip = address();
  const ask = async () => {
    const began = Date.now();
    const { status, headers } = await fetch(url + "/paced", { headers: { "x-forwarded-for": ip } });
    return { status, ms: Date.now() - began, retry: Number(headers.get("retry-after")) };
  };
  await ask();
  const all = await Promise.all(Array.from({ length: 12 }, ask));
  assert.ok(all.some((r) => r.status === 200 && r.ms > 100));
  const refused = all.filter((r) => r.status === 429);
  assert.ok(refused.length > 2 && refused.every((r) => r.retry >= 1));
});

test("addresses that are not known, and options that make no sense", async (t) => {
  const app = new Hono();
  app.use(forHono({ nodes: node.url }));
  app.onError((e, c) => c.text(e.message, 500));
  const r = await app.request("/");
  assert.deepEqual([r.status, /address is not known/.test(await r.text())], [500, true]);
  await assert.rejects(forFetch({ nodes: node.url })(() => new Response())(new Request("http://x/")), /address is not known/);
  assert.throws(() => forExpress({ nodes: node.url, key: () => "k" }), /rule/);
  assert.throws(() => forExpress({}), /nodes/);
  const handler = forFetch({ nodes: node.url, ip: () => address() })(() => fetch(node.url + "/healthz")); // its headers can't be set
  const healthy = await handler(new Request("http://x/address"));
  assert.deepEqual([healthy.status, healthy.headers.has("ratelimit")], [200, true]);
  await eventually("a proxy's header counts from the right", async () => {
    const h = forFetch({ nodes: node.url, trustedHops: 2 })(() => new Response());
    const ask = (list) => h(new Request("http://x/address", { headers: { "x-forwarded-for": list } }));
    const ip = address();
    const seen = [await ask(`1.2.3.4, ${ip}, 10.0.0.1`), await ask(`5.6.7.8, ${ip}, 10.0.0.2`), await ask(`${ip}, 10.0.0.3`)];
    return seen.map((x) => x.status).join() === "200,200,429";
  });
  t.diagnostic("done");
});
