// The vectors that the clients of all languages run.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { test } from "node:test";
import { RlnodeClient } from "rlnode";
import { rateLimit as forExpress } from "rlnode/express";
import { rateLimit as forHono } from "rlnode/hono";

const { addresses, calls, invalid, values } = JSON.parse(readFileSync(new URL("../../vectors.json", import.meta.url), "utf8"));

const camelName = (name) => name.replace(/_(.)/g, (_, c) => c.toUpperCase());

/** camel spells names as JavaScript does; a request has its names so. */
const camel = (value) => {
  if (Array.isArray(value)) return value.map(camel);
  if (!value || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([k, v]) => [camelName(k), k === "costs" || k === "attributes" ? v : camel(v)]));
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
    const open = new RlnodeClient({ nodes: [server.url], timeoutMs: 5000 });
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
        else assert.deepEqual(have, value, name);
      }
    } else if (one.error.on_error) {
      const closed = new RlnodeClient({ nodes: [server.url], timeoutMs: 5000, onError: "closed" });
      const refused = await make(closed, one.call, one.request);
      assert.deepEqual([result.allowed, refused.allowed, result.decidedBy], [true, false, "error"]);
      assert.ok(result.error);
    } else {
      assert.equal(result, undefined);
      assert.deepEqual([error.name, error.httpStatus, error.code], ["RlnodeError", one.error.status, one.error.code]);
      if (one.error.detail) assert.equal(error.detail, one.error.detail);
    }
  });

test("invalid calls are not sent", async (t) => {
  const server = await fake(t);
  const client = new RlnodeClient({ nodes: [server.url] });
  for (const { name, call, request } of invalid) await assert.rejects(make(client, call, request), { name: "RlnodeError", code: "invalid" }, name);
  assert.equal(server.requests.length, 0);
});

test("values are made to fit", async (t) => {
  const server = await fake(t);
  const client = new RlnodeClient({ nodes: [server.url] });
  for (const { have, sent } of values) {
    server.requests = [];
    await client.check({ attributes: { a: have } });
    assert.equal(server.requests[0].body.attributes.a, sent);
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
