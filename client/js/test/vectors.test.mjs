// The vectors that the clients of all languages run.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { test } from "node:test";
import { RequestError, RlnodeClient } from "rlnode";
import { rateLimit as forExpress } from "rlnode/express";
import { rateLimit as forHono } from "rlnode/hono";

const { addresses, calls, headers, invalid, keys, values } = JSON.parse(readFileSync(new URL("../../vectors.json", import.meta.url), "utf8"));

const camelName = (name) => name.replace(/_(.)/g, (_, c) => c.toUpperCase());

/** camel spells names as JavaScript does; a request has its names so. */
const camel = (value) => {
  if (Array.isArray(value)) return value.map(camel);
  if (!value || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([k, v]) => [camelName(k), k === "costs" || k === "applied" || k === "attributes" ? v : camel(v)]));
};

/** fake is a server that answers as `answer` says, and keeps what it is asked. */
async function fake(t) {
  const self = { requests: [], answer: { status: 200, body: "{}", headers: {} } };
  const server = createServer((request, response) => {
    let text = "";
    request.on("data", (chunk) => (text += chunk));
    request.on("end", () => {
      self.requests.push({ path: request.url, body: text && JSON.parse(text), headers: request.headers });
      response.writeHead(self.answer.status, self.answer.headers);
      response.end(self.answer.body);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  self.url = `http://127.0.0.1:${server.address().port}`;
  t.after(() => (server.closeAllConnections(), server.close()));
  return self;
}

const make = (client, call, request) => client[call](camel(request));

for (const one of calls)
  test(one.name, async (t) => {
    const server = await fake(t);
    server.answer = { status: one.status, body: one.answer === null ? "<html>" : JSON.stringify(one.answer), headers: one.answer_headers ?? {} };
    const open = new RlnodeClient({ nodes: [server.url], timeoutMs: 20_000 });
    let result;
    let error;
    try {
      result = await make(open, one.call, one.request);
    } catch (e) {
      error = e;
    }
    assert.deepEqual([server.requests[0]?.path, server.requests[0]?.body], [one.path, one.sent]);
    for (const [name, value] of Object.entries(one.headers ?? {})) assert.equal(result.headers[name], value, name);
    if (!one.error) {
      assert.equal(error, undefined);
      for (const [name, value] of Object.entries(one.result)) {
        let have = result[camelName(name)];
        if (name === "key") have = [have].flat();
        if (name === "limits") for (const [i, l] of value.entries()) for (const k in camel(l)) assert.deepEqual(have[i][k], camel(l)[k], k);
        else assert.deepEqual(have, name === "rate" ? camel(value) : value, name);
      }
    } else if (one.error.on_error) {
      const closed = new RlnodeClient({ nodes: [server.url], timeoutMs: 20_000, onError: "closed" });
      const refused = await make(closed, one.call, one.request);
      assert.deepEqual([result.allowed, refused.allowed, result.decidedBy], [true, false, "error"]);
      assert.ok(result.error);
    } else {
      assert.equal(result, undefined);
      assert.deepEqual([error.name, error.httpStatus, error.code], ["RlnodeError", one.error.status, one.error.code]);
      if (one.error.detail) assert.equal(error.detail, one.error.detail);
    }
  });

for (const { name, checks } of headers)
  test(`headers: ${name}`, async (t) => {
    const server = await fake(t);
    const client = new RlnodeClient({ nodes: [server.url], timeoutMs: 20_000 });
    for (const [i, one] of checks.entries()) {
      server.answer = { status: one.status, body: JSON.stringify(one.answer), headers: one.headers };
      const d = await client.check({ rule: "r", key: "k", detail: true, headers: true });
      assert.deepEqual(d.headers, one.headers, `check ${i}`);
      const { code = "", retry_after_ms, more_after_ms, rate } = one.answer;
      assert.deepEqual([d.code, d.never, d.moreAfterMs, d.rate], [code, retry_after_ms === -1, more_after_ms, camel(rate)], `check ${i}`);
    }
  });

test("invalid calls are not sent", async (t) => {
  const server = await fake(t);
  const client = new RlnodeClient({ nodes: [server.url], timeoutMs: 20_000 });
  for (const { name, call, request } of invalid) await assert.rejects(make(client, call, request), { name: "RequestError", code: "invalid" }, name);
  assert.equal(server.requests.length, 0);
});

/** valueOf returns the value of a vector; JSON has integers that are bigints here. */
const valueOf = ({ json, javascript }) => {
  if (javascript) return Function(`return (${javascript})`)();
  return /^-?\d+$/.test(json) && !Number.isSafeInteger(Number(json)) ? BigInt(json) : JSON.parse(json);
};
const isOurs = (v) => (v.javascript ?? v.json) && (!v.for || v.for.includes("javascript"));

test("values", async (t) => {
  const server = await fake(t);
  server.answer.body = JSON.stringify({ allowed: true, decided_by: "none" });
  const client = new RlnodeClient({ nodes: [server.url], timeoutMs: 20_000 });
  for (const v of values.filter(isOurs)) {
    server.requests = [];
    const call = client.check({ attributes: { a: valueOf(v) } });
    if (v.wrong) {
      await assert.rejects(call, (e) => e instanceof RequestError && e.code === "invalid" && e.message.includes("attributes.a"), v.javascript ?? v.json);
      assert.equal(server.requests.length, 0);
    } else {
      await call;
      assert.deepEqual(server.requests[0].body.attributes, v.absent ? {} : { a: v.text }, v.javascript ?? v.json);
    }
  }
});

test("keys", async (t) => {
  const server = await fake(t);
  server.answer.body = JSON.stringify({ allowed: true, decided_by: "owner", rule: "r" });
  const client = new RlnodeClient({ nodes: [server.url], timeoutMs: 20_000 });
  for (const v of keys.filter(isOurs)) {
    server.requests = [];
    const name = v.javascript ?? v.json;
    const call = client.check({ key: valueOf(v), ...(v.limits ? { limits: [{ limit: 1, per: "1m" }] } : { rule: "r" }) });
    if (v.invalid) {
      await assert.rejects(call, (e) => e instanceof RequestError && e.message.includes("key"), name);
      assert.equal(server.requests.length, 0);
      continue;
    }
    await call;
    const { key } = server.requests[0].body;
    if (v.text) assert.deepEqual([key].flat(), v.text, name);
    else if (v.error === "missing-key") assert.ok(key === undefined || [key].flat().some((one) => one === null || one === ""), name);
  }
});

// Of many values, each is sent as itself or refused. What is sent of two different ones is different.
test("values are kept apart", async (t) => {
  const seen = new Map();
  let sent;
  const client = new RlnodeClient({
    nodes: "http://127.0.0.1:1",
    maxBatch: 1,
    timeoutMs: 20_000,
    fetch: (_, { body }) => {
      sent = JSON.parse(body).key[0];
      return Promise.resolve(new Response(JSON.stringify({ allowed: true, decided_by: "none" })));
    },
  });
  let seed = 1;
  const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
  const texts = ["", "a", "B", "7", "07", "-0", " ", "\0", "é", "\ud800", "\udfff", "😀", "null", "undefined", "[object Object]", "NaN", "true", "x".repeat(300)];
  const text = () => Array.from({ length: random(5) }, () => texts[random(texts.length)]).join("");
  const others = [
    () => random(2 ** 31) - 2 ** 30, () => random(2 ** 31) * 2 ** random(40), () => BigInt(random(2 ** 31)) ** BigInt(random(9)), () => random(1000) / 10,
    () => [undefined, null, NaN, Infinity, -0, true, false][random(7)], () => [[], ["a"], {}, { a: 1 }, new Date(), () => 1, Symbol("s"), new String("a"), Object.create(null)][random(9)],
  ]; // prettier-ignore
  for (let i = 0; i < 100_000; i++) {
    const value = random(2) ? text() : others[random(others.length)]();
    const whole = typeof value === "bigint" || (Number.isSafeInteger(value) && !Object.is(value, -0));
    sent = undefined;
    let error;
    try {
      await client.check({ rule: "r", key: [value, "b"] });
    } catch (e) {
      error = e;
    }
    if (typeof value === "string" || whole) {
      const as = String(value).toWellFormed();
      assert.equal(error, undefined);
      if (Buffer.byteLength(as) > 1024) assert.ok(Buffer.byteLength(sent) <= 1024);
      else assert.equal(sent, as);
      const other = seen.get(sent) ?? as;
      assert.ok(other === as || Buffer.byteLength(as) > 1024, "two values are sent as " + sent);
      seen.set(sent, as);
    } else if (value == null) assert.deepEqual([sent, error], [null, undefined]);
    else assert.ok(error instanceof RequestError && sent === undefined, String(typeof value));
  }
});

test("addresses of callers", async (t) => {
  const server = await fake(t);
  const peer = "192.0.2.1";
  const proxied = forHono({ nodes: [server.url], trustedHops: 1 });
  const direct = forExpress({ nodes: [server.url] });
  const sent = async (ask) => {
    server.requests = [];
    await ask();
    return server.requests[0].body.attributes.ip;
  };
  const overHono = (header) => ({
    req: { method: "GET", path: "/", header: () => header }, env: { remoteAddr: { hostname: peer } }, set() {}, header() {}, body() {},
  });
  const overExpress = (ip) => [{ ip, socket: {}, method: "GET", url: "/" }, { setHeader() {}, set() {} }];
  for (const { have, want } of addresses) {
    assert.equal(await sent(() => proxied(overHono(have), async () => {})), want ?? peer, `${have}, from a proxy`);
    if (have) assert.equal(await sent(() => new Promise((next) => direct(...overExpress(have), next))), want ?? have, `${have}, a peer`);
  }
});
