// The client beside servers that do what a test wants.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import { Local } from "../dist/esm/local.js";
import { RequestError, RlnodeClient, RlnodeError } from "rlnode";
import { eventually } from "./node.mjs";

const dead = "http://127.255.1.2:4444"; // nothing listens there
const yes = { allowed: true, rule: "r", limit: 9, used: 1, remaining: 8, unit: "requests", window_ms: 60000, reset_after_ms: 9, retry_after_ms: 0, delay_ms: 0, decided_by: "owner", node: "n", rules_version: 1 }; // prettier-ignore
const no = { ...yes, allowed: false, used: 9, remaining: 0, retry_after_ms: 1500 };
const problem = (status, code) => ({ status, body: { type: "about:blank", title: "x", status, code, detail: "why" } });

/** fake answers as `answer(path, body)` says: {status, body}, or a promise of it. */
async function fake(t, answer = () => ({ body: yes })) {
  const self = { answer, requests: [], inFlight: 0, most: 0 };
  self.server = createServer(async (request, response) => {
    self.most = Math.max(self.most, ++self.inFlight);
    let text = "";
    for await (const chunk of request) text += chunk;
    const body = text && JSON.parse(text);
    self.requests.push({ path: request.url, body, headers: request.headers });
    const { status = 200, body: out = yes } = (await self.answer(request.url, body)) ?? {};
    self.inFlight--;
    const whole = status === 200 && body.checks ? { results: body.checks.map(() => out) } : out;
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(whole));
  });
  await new Promise((resolve) => self.server.listen(0, "127.0.0.1", resolve));
  self.url = `http://127.0.0.1:${self.server.address().port}`;
  self.paths = () => self.requests.map((r) => r.path);
  t.after(() => (self.server.closeAllConnections(), self.server.close()));
  return self;
}

const q = { rule: "r", key: "k" };
/** client makes a client that is patient with busy machines. */
const client = (options) => new RlnodeClient({ timeoutMs: 20_000, ...options });
const never = () => new Promise(() => {});

/** within returns what a promise gives, and fails if that takes longer. */
async function within(ms, promise) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error("not in time")), ms)));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

test("concurrent checks share a request", async (t) => {
  const s = await fake(t);
  const c = client({ nodes: s.url, maxBatch: 100 });
  const all = await Promise.all(Array.from({ length: 250 }, (_, i) => c.check({ rule: "r", key: "k" + i })));
  assert.ok(all.every((d) => d.allowed && d.decidedBy === "owner"));
  assert.deepEqual(s.requests.map((r) => r.body.checks.length), [100, 100, 50]); // prettier-ignore
  assert.deepEqual(s.requests[0].body.checks[99], { rule: "r", key: "k99" });
  await c.check(q);
  assert.equal(s.paths().at(-1), "/v1/check"); // a check by itself goes by itself
  const single = client({ nodes: s.url, maxBatch: 1 });
  s.requests = [];
  await Promise.all([single.check(q), single.check(q)]);
  assert.deepEqual(s.paths(), ["/v1/check", "/v1/check"]);
});

test("requests in flight are bounded, and what waits goes together", async (t) => {
  const s = await fake(t, async () => void (await new Promise((resolve) => setTimeout(resolve, 20))));
  const c = new RlnodeClient({ nodes: s.url, maxInFlight: 2, maxBatch: 10, timeoutMs: 10_000 });
  await Promise.all(Array.from({ length: 95 }, () => c.check(q)));
  assert.equal(s.most, 2);
  assert.equal(s.requests.length, 10);
});

test("in a batch a check may fail, be denied or be counted", async (t) => {
  const s = await fake(t, (_, body) => ({ body: { results: body.checks.map((check) => check.key === "bad" ? { error: problem(400, "bad-value").body } : check.key === "no" ? { ...no, decided_by: "list", code: "denied", rule: "" } : no) } })); // prettier-ignore
  s.answer = ((inner) => (path, body) => ({ status: 200, body: inner(path, { checks: body.checks }).body }))(s.answer);
  s.server.removeAllListeners("request");
  s.server.on("request", async (request, response) => {
    let text = "";
    for await (const chunk of request) text += chunk;
    response.end(JSON.stringify(s.answer(request.url, JSON.parse(text)).body));
  });
  const c = client({ nodes: s.url });
  const [bad, denied, counted, plain] = await Promise.allSettled([
    c.check({ rule: "r", key: "bad" }),
    c.count({ rule: "r", key: "no" }),
    c.count({ rule: "r", key: "k" }),
    c.check({ rule: "r", key: "k" }),
  ]);
  assert.deepEqual([bad.reason.httpStatus, bad.reason.code], [400, "bad-value"]);
  assert.deepEqual([denied.value.denied, denied.value.counted], [true, false]);
  assert.deepEqual([counted.value.counted, plain.value.counted], [true, false]);
  assert.equal(plain.value.headers["Retry-After"], "2");
  assert.match(plain.value.reason, /limit of 9 requests per 60 s/);
});

test("a dead node costs no call, is passed over, and comes back", async (t) => {
  const [a, b] = [await fake(t), await fake(t)];
  const log = [];
  const c = client({ nodes: [a.url, b.url], log: (m) => log.push(m) });
  await c.check(q);
  assert.deepEqual([a.requests.length, b.requests.length], [1, 0]);
  const port = a.server.address().port;
  a.server.closeAllConnections();
  await new Promise((resolve) => a.server.close(resolve));
  for (let i = 0; i < 20; i++) assert.equal((await c.check(q)).decidedBy, "owner");
  assert.equal(b.requests.length, 20);
  await new Promise((resolve) => a.server.listen(port, "127.0.0.1", resolve));
  a.requests = [];
  await eventually("the node is asked again", async () => (await c.check(q), a.paths().includes("/v1/check")));
  assert.ok(a.paths().includes("/readyz"));
  assert.ok(log.some((m) => m.includes("passed over")) && log.some((m) => m.includes("asked again")));
});

test("a silent node costs half of the time once", async (t) => {
  const [a, b] = [await fake(t, never), await fake(t)];
  const c = new RlnodeClient({ nodes: [a.url, b.url], timeoutMs: 5000 });
  const began = Date.now();
  assert.equal((await c.check(q)).decidedBy, "owner");
  assert.ok(Date.now() - began >= 2490);
  for (let i = 0; i < 5; i++) await c.check(q);
  assert.equal(a.paths().filter((p) => p === "/v1/check").length, 1);
});

test("a process that is held up blames no node whose answer has arrived", async (t) => {
  const s = await fake(t);
  // For longer than a request may last, and for longer than a call may.
  for (const holdMs of [700, 1200]) {
    const hold = () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, holdMs);
    for (let tries = 20, smooth = false; tries > 0 && !smooth; tries--) {
      const held = new Promise((resolve) => (s.answer = () => void setImmediate(() => resolve(hold()))));
      const c = new RlnodeClient({ nodes: s.url, onError: "closed", timeoutMs: 500 });
      const began = performance.now();
      const { error } = await c.check(q);
      smooth = performance.now() - began < holdMs + 300; // else the machine held it up, too: that says nothing
      if (smooth) assert.equal(error, undefined);
      await held;
    }
  }
});

test("a single node that was silent is tried again by one call", async (t) => {
  const s = await fake(t, never);
  const c = new RlnodeClient({ nodes: s.url, timeoutMs: 100 });
  assert.equal((await c.check(q)).error.code, "timeout");
  // The next call does not ask it, unless the machine was slow: then it may be its turn already.
  await eventually("it is not asked", async () => {
    const asked = s.requests.length;
    return (await c.check(q)).error.code === "unavailable" && s.requests.length === asked;
  });
  s.answer = () => ({ body: yes });
  await eventually("it answers", async () => (await c.check(q)).decidedBy === "owner");
});

test("what is repeated, and what not", async (t) => {
  const bodies = [];
  const [a, b] = [await fake(t, () => problem(500, "internal")), await fake(t, (_, body) => void bodies.push(body))];
  const fresh = () => client({ nodes: [a.url, b.url] });
  assert.equal((await fresh().check(q)).decidedBy, "owner");
  b.answer = (_, body) => (bodies.push(body), { body: { rule: "r", key: "k", limits: [] } });
  await fresh().adjust({ ...q, cost: 1 });
  assert.equal(bodies.at(-1).request_id, a.requests.at(-1).body.request_id); // the same call
  await fresh().reset(q);
  assert.ok(bodies.at(-1).request_id);
  for (const call of ["adjust", "reset"]) {
    await fresh()[call]({ ...q, ...(call === "adjust" && { cost: 1 }), requestId: undefined }); // as if it were not there
    assert.ok(bodies.at(-1).request_id, call);
  }
  await assert.rejects(fresh().adjust({ ...q, cost: 1, requestId: null }), { httpStatus: 500 });
  assert.equal(a.requests.at(-1).body.request_id, undefined);
  a.answer = () => problem(503, "not-ready"); // it was not carried out
  await fresh().adjust({ ...q, cost: 1, requestId: null });
  const away = client({ nodes: [dead, b.url] });
  await away.adjust({ ...q, cost: 1, requestId: null });
});

test("a call waits for an owner that can't be reached", async (t) => {
  let n = 0;
  const s = await fake(t, () => (++n < 3 ? problem(503, "no-owner") : { body: { reservation: "x", settled: true, costs: {}, repeated: false } }));
  const c = client({ nodes: [dead, s.url] }); // asked last as soon as it is known to be down
  assert.equal((await c.settle("x", {})).settled, true);
  assert.equal(n, 3);
  assert.deepEqual(await c.settle(""), { reservation: "", settled: false, costs: {}, repeated: false });
});

test("a node without room for another reservation is well", async (t) => {
  let second = 0;
  const a = await fake(t, (path) => (path === "/v1/reserve" ? problem(503, "too-many-reservations") : { body: yes }));
  const b = await fake(t, () => ({ body: (second++, yes) }));
  const c = client({ nodes: [a.url, b.url] });
  assert.equal((await c.reserve(q)).error.code, "too-many-reservations");
  for (let i = 0; i < 3; i++) await c.check(q);
  assert.equal(second, 0);
});

test("onError: open, closed and local", async () => {
  const call = (onError, request, more) => new RlnodeClient({ nodes: dead, onError, ...more }).check(request);
  for (const [onError, allowed] of [["open", true], ["closed", false], [undefined, true]]) {
    const d = await call(onError, q);
    assert.deepEqual([d.allowed, d.decidedBy, d.error.code], [allowed, "error", "unavailable"]);
  }
  await assert.rejects(new RlnodeClient({ nodes: dead }).usage(q), RlnodeError);
  assert.deepEqual((await new RlnodeClient({ nodes: dead, onError: "open" }).reserve(q)).reservation, "");
});

test("local: limits that come with the call", async () => {
  const c = new RlnodeClient({ nodes: dead, onError: "local", local: { limit: 9, per: "1h" } });
  const own = { key: "k", limits: [{ limit: 2, per: "1m" }, { limit: 5, per: 3_600_000, unit: "tokens" }] };
  assert.deepEqual([(await c.check({ ...own, costs: { tokens: 3 } })).allowed, (await c.check({ ...own, costs: { tokens: 3 } })).allowed], [true, false]);
  const d = await c.check(own);
  assert.deepEqual([d.allowed, d.used, d.remaining, d.decidedBy, d.windowMs], [true, 2, 0, "local", 60_000]);
  const no = await c.check(own);
  assert.deepEqual([no.allowed, no.headers["Retry-After"], no.violated], [false, "60", ["inline"]]);
  assert.equal((await c.peek(own)).allowed, false);
  const counted = await c.count(own);
  assert.deepEqual([counted.allowed, counted.counted, counted.used], [false, true, 3]);
  assert.equal((await c.check({ ...own, key: "other" })).allowed, true);
  assert.equal((await c.check({ ...own, namespace: "n" })).allowed, true);
  assert.equal((await c.check({ ...own, shadow: true })).allowed, true);
  assert.equal((await c.check({ ...own, key: "large", cost: 3 })).retryAfterMs, -1);
  const both = (mode) => ({ subjects: [{ key: "s", limits: [{ limit: 1, per: "1d" }], mode }, { key: "k", limits: own.limits }] });
  assert.equal((await c.check(both())).allowed, false); // all or nothing
  assert.equal((await c.check({ key: "s", limits: [{ limit: 1, per: "1d" }] })).allowed, true);
  const soon = { key: "soon", limits: [{ limit: 1, per: "50ms" }] };
  await c.check(soon);
  await eventually("its window ends", async () => (await c.check(soon)).allowed);
});

test("local: checks that bring no limits have the given ones", async () => {
  const c = new RlnodeClient({ nodes: dead, onError: "local", local: { limit: 2, per: "1h" } });
  const at = (ip, endpoint = "/") => ({ attributes: { ip, endpoint, method: "GET" } });
  const allowed = async (request) => (await c.check(request)).allowed;
  assert.deepEqual([await allowed(q), await allowed(q), await allowed(q)], [true, true, false]);
  assert.equal(await allowed({ rule: "r", key: "other" }), true);
  assert.equal(await allowed({ ...q, rule: "other" }), true);
  assert.deepEqual([await allowed(at("192.0.2.1")), await allowed(at("192.0.2.1", "/b")), await allowed(at("192.0.2.1", "/c"))], [true, true, false]);
  assert.equal(await allowed(at("192.0.2.2")), true);
  for (const local of [undefined, []]) assert.throws(() => new RlnodeClient({ nodes: dead, onError: "local", local }), RequestError);
  for (const per of ["", "1 fortnight", -1]) assert.throws(() => new RlnodeClient({ nodes: dead, onError: "local", local: { limit: 1, per } }));
});

test("local: a window that is none is refused", async () => {
  const c = new RlnodeClient({ nodes: dead, onError: "local", local: { limit: 9, per: "1h" } });
  await assert.rejects(c.check({ key: "k", limits: [{ limit: 1, per: "1 fortnight" }] }), { code: "invalid" });
});

test("local: memory is bounded", () => {
  const local = new Local([]);
  const of = (i) => local.decide({ key: "k" + i, limits: [{ limit: 1, per: "1h" }] });
  const all = Array.from({ length: 100_001 }, (_, i) => of(i));
  assert.equal(all.filter((d) => d.allowed).length, 100_000);
  assert.equal(of(0).allowed, false); // nobody washes his own away
  assert.equal(of(0).allowed, false); // who is known goes on: by its limit, and another one by its own
  const known = { key: "k1", limits: [{ limit: 2, per: "1h" }] };
  assert.deepEqual([local.decide(known).allowed, local.decide(known).allowed], [true, false]);
  assert.equal(local.decide({ key: "unknown", limits: known.limits, mode: "peek" }).allowed, true); // takes no place
});

test("what strangers could cause is refused, also with open", async (t) => {
  const s = await fake(t, never);
  const c = new RlnodeClient({ nodes: s.url, maxQueue: 2, maxInFlight: 1, maxBatch: 1, timeoutMs: 200 });
  const all = await Promise.all(Array.from({ length: 5 }, () => c.check(q)));
  const full = all.filter((d) => d.error.code === "queue-full"); // two at once, and those whose turn does not come
  assert.ok(full.length >= 2 && full.every((d) => !d.allowed), JSON.stringify(all));
  s.answer = () => problem(400, "bad-value");
  const fresh = client({ nodes: s.url });
  await assert.rejects(fresh.check(q), { httpStatus: 400, code: "bad-value", detail: "why" });
  await assert.rejects(fresh.check({ rule: "r", key: "k", attributes: {} }), { code: "invalid" });
  await assert.rejects(fresh.check({ attributes: Object.fromEntries(Array.from({ length: 80 }, (_, i) => [i, "x".repeat(1000)])) }), { code: "invalid" });
});

test("a call whose turn does not come since no node answers is decided by onError", async (t) => {
  const silent = await Promise.all(Array.from({ length: 8 }, () => fake(t, never)));
  const c = client({ nodes: silent.map((s) => s.url), timeoutMs: 300, maxInFlight: 1, maxBatch: 1 });
  const all = await Promise.all(Array.from({ length: 6 }, () => c.check(q)));
  assert.ok(all.every((d) => d.allowed && d.error), JSON.stringify(all));
});

test("signals and close end calls", async (t) => {
  const s = await fake(t, never);
  const c = new RlnodeClient({ nodes: s.url, timeoutMs: 60_000 });
  const abort = new AbortController();
  const call = c.check(q, { signal: abort.signal });
  setTimeout(() => abort.abort(new Error("enough")), 20);
  await assert.rejects(call, /enough/);
  await assert.rejects(c.check(q, { signal: AbortSignal.abort(new Error("before")) }), /before/);
  await assert.rejects(c.usage(q, { signal: AbortSignal.timeout(10) }), { name: "TimeoutError" });
  const last = [c.check(q), c.usage(q)];
  setTimeout(() => c.close(), 20);
  for (const one of last) await assert.rejects(one, { code: "closed" });
  await assert.rejects(c.check(q), { code: "closed" });
});

test("a delayed check waits if it is told to", async (t) => {
  const s = await fake(t, () => ({ body: { ...yes, delay_ms: 60 } }));
  const c = client({ nodes: s.url });
  const began = Date.now();
  await c.check(q);
  assert.equal((await c.check({ ...q, wait: true })).delayMs, 60);
  assert.ok(Date.now() - began >= 59);
  assert.ok(s.requests.every((r) => r.body.wait === undefined)); // it is the client that waits
});

test("a delay ends with the call's signal and with the client", async (t) => {
  const s = await fake(t, () => ({ body: { ...yes, delay_ms: 60_000, reservation: "x" } }));
  const c = client({ nodes: s.url });
  const timers = () => process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
  await c.check(q);
  const before = timers();
  for (const call of ["check", "count", "reserve"]) {
    const stop = new AbortController();
    const waiting = c[call]({ ...q, wait: true }, { signal: stop.signal });
    setTimeout(() => stop.abort(new Error("enough")), 100);
    await within(20_000, assert.rejects(waiting, /enough/, call));
  }
  const waiting = [c.check({ ...q, wait: true }), c.reserve({ ...q, wait: true })];
  setTimeout(() => c.close(), 100);
  for (const one of waiting) await within(20_000, assert.rejects(one, { code: "closed" }));
  assert.ok(timers() <= before, "a timer is left");
});

test("a delay that is longer than a timer can be", async (t) => {
  const s = await fake(t, () => ({ body: { ...yes, delay_ms: 2 ** 31 + 1000 } }));
  const c = client({ nodes: s.url });
  const waiting = c.check({ ...q, wait: true });
  const soon = new Promise((resolve) => setTimeout(resolve, 300, "it waits"));
  assert.equal(await Promise.race([waiting, soon]), "it waits");
  c.close();
  await assert.rejects(waiting, { code: "closed" });
});

/** step moves the wall clock by `ms`; it goes on from there. */
function step(t, ms) {
  const real = Date.now;
  t.mock.method(Date, "now", () => real() + ms);
}
const hour = 3_600_000;

test("a clock that is set back keeps no node out of use", async (t) => {
  const s = await fake(t, never);
  const c = new RlnodeClient({ nodes: s.url, timeoutMs: 200, log: () => {} });
  assert.equal((await c.check(q)).error.code, "timeout");
  step(t, -hour);
  s.answer = () => ({ body: yes });
  await eventually("it is asked again", async () => (await c.check(q)).decidedBy === "owner");
});

test("a clock that is set back makes no call longer", async (t) => {
  const s = await fake(t, () => problem(503, "no-owner"));
  const c = new RlnodeClient({ nodes: s.url, timeoutMs: 400, log: () => {} });
  const call = c.reserve(q);
  await eventually("it is under way", () => s.requests.length > 0);
  step(t, -hour);
  await within(20_000, call);
  c.close();
});

test("a clock that is set forward ends no call", async (t) => {
  const slow = await fake(t, () => new Promise((resolve) => setTimeout(() => resolve(problem(500, "internal")), 100)));
  const good = await fake(t);
  const c = client({ nodes: [slow.url, good.url], log: () => {} });
  const calls = [c.check(q), c.check(q)];
  await eventually("they are under way", () => slow.requests.length > 0);
  step(t, hour);
  for (const d of await Promise.all(calls)) assert.equal(d.decidedBy, "owner");
});

test("local: a window has its own length whatever becomes of the clock", async (t) => {
  const c = new RlnodeClient({ nodes: dead, onError: "local", local: { limit: 1, per: "1m" }, log: () => {} });
  const [soon, long] = ["200ms", "1h"].map((per) => ({ key: "k", limits: [{ limit: 1, per }] }));
  const allowed = async (request) => (await c.check(request)).allowed;
  assert.deepEqual([await allowed(soon), await allowed(long)], [true, true]);
  step(t, 2 * hour);
  assert.equal(await allowed(long), false);
  step(t, -3 * hour);
  await eventually("its window ends", () => allowed(soon));
});

test("tokens and addresses", async (t) => {
  const s = await fake(t);
  await client({ nodes: [s.url + "/proxy/"], token: "secret" }).check(q);
  assert.deepEqual([s.requests[0].path, s.requests[0].headers.authorization], ["/proxy/v1/check", "Bearer secret"]);
  for (const nodes of [[], [""], ["nonsense"], ["ftp://x"], ["http://u:p@x"], ["http://x/?a"], Array(65).fill(s.url)]) assert.throws(() => new RlnodeClient({ nodes }), TypeError, String(nodes)); // prettier-ignore
  assert.throws(() => new RlnodeClient({ nodes: s.url, token: "two\nlines" }), TypeError);
  for (const name of ["timeoutMs", "maxInFlight", "maxBatch", "maxQueue"]) for (const v of [0, -1, NaN, 1e9]) assert.throws(() => new RlnodeClient({ nodes: s.url, [name]: v }), new RegExp(name)); // prettier-ignore
});

test("a redirect is not followed: the token is for the node alone", async (t) => {
  const other = await fake(t);
  const s = createServer((_, response) => (response.writeHead(307, { location: other.url + "/v1/check" }), response.end()));
  await new Promise((resolve) => s.listen(0, "127.0.0.1", resolve));
  t.after(() => (s.closeAllConnections(), s.close()));
  await assert.rejects(client({ nodes: `http://127.0.0.1:${s.address().port}`, token: "t" }).check(q), { httpStatus: 307 });
  assert.equal(other.requests.length, 0);
});

test("an answer without end is not read to its end", async (t) => {
  let sent = 0;
  const blanks = Buffer.alloc(1 << 16, " ");
  const s = createServer((_, response) => {
    const more = () => {
      do sent += blanks.length;
      while (response.write(blanks));
    };
    response.on("drain", more);
    more();
  });
  await new Promise((resolve) => s.listen(0, "127.0.0.1", resolve));
  t.after(() => (s.closeAllConnections(), s.close()));
  const good = await fake(t);
  const url = `http://127.0.0.1:${s.address().port}`;
  const c = new RlnodeClient({ nodes: url, onError: "closed", timeoutMs: 60_000 });
  assert.equal((await c.check(q)).error.code, "bad-answer");
  assert.ok(sent < 32 << 20, `${sent} bytes`);
  for (const d of await Promise.all([c.check(q), c.check(q)])) assert.deepEqual([d.allowed, d.error.code], [false, "bad-answer"]);
  assert.ok(sent > 64 << 20 && sent < 128 << 20, `${sent} bytes`);
  assert.equal((await new RlnodeClient({ nodes: [url, good.url], timeoutMs: 60_000 }).check(q)).decidedBy, "owner");
});

const unauthorized = problem(401, "unauthorized");
const forbidden = problem(403, "forbidden");
const unknownRule = problem(404, "unknown-rule");

/** journal keeps what a client logs. */
function journal() {
  const lines = [];
  const log = (message, level) => lines.push(`${level} ${message}`);
  return { log, lines, count: (...parts) => lines.filter((line) => parts.every((part) => line.includes(part))).length };
}

test("a client that a node rejects asks one other", async (t) => {
  for (const answer of [unauthorized, forbidden]) {
    const { status, body } = answer;
    const [one, two, three, good] = [await fake(t, () => answer), await fake(t, () => answer), await fake(t, () => answer), await fake(t)];
    const { log, count } = journal();
    assert.equal((await new RlnodeClient({ nodes: [one.url, good.url], log }).check(q)).allowed, true);
    assert.deepEqual([one.requests.length, good.requests.length, count("error")], [1, 1, 0]);
    const nodes = [one.url, two.url, three.url];
    const shut = new RlnodeClient({ nodes, log });
    for (let i = 0; i < 5; i++) await assert.rejects(shut.check(q), { httpStatus: status, code: body.code });
    assert.equal(count("error", "reject", body.code), 1); // once a minute
    const open = await new RlnodeClient({ nodes, log, onRejected: "open", onError: "closed" }).check(q);
    assert.deepEqual([open.allowed, open.decidedBy, open.error.httpStatus], [true, "error", status]);
    assert.equal(three.requests.length, 0);
    await assert.rejects(new RlnodeClient({ nodes: [one.url, dead], log }).check(q), { httpStatus: status });
  }
  assert.throws(() => new RlnodeClient({ nodes: dead, onRejected: "local" }), /onRejected/);
});

test("an unknown rule whose name is the program's is left to onError, and any other is refused", async (t) => {
  const s = await fake(t, (path) => (path === "/v1/check" ? unknownRule : { body: { results: [] } }));
  const { log, count } = journal();
  const mine = { rule: "mine", key: "k" };
  for (const [onError, allowed] of [["open", true], ["closed", false]]) {
    const c = new RlnodeClient({ nodes: s.url, onError, rules: "mine", log });
    assert.deepEqual([(await c.check(mine)).allowed, (await c.check(mine)).error.code], [allowed, "unknown-rule"]);
    await assert.rejects(c.check({ rule: "other", key: "k" }), { code: "unknown-rule" });
  }
  assert.equal(count("error", '"mine"'), 2); // once by each client
  const local = new RlnodeClient({ nodes: s.url, onError: "local", local: { limit: 1, per: "1m" }, rules: ["mine"], log });
  assert.deepEqual([(await local.check(mine)).allowed, (await local.check(mine)).allowed], [true, false]);
});

test("the token and the rules are checked at the start", async (t) => {
  const about = (code) => fake(t, () => ({ body: { error: problem(0, code).body } }));
  const [known, unknown, rejecting] = [await about("bad-value"), await about("unknown-rule"), await fake(t, () => unauthorized)];
  const { log, count } = journal();
  const c = new RlnodeClient({ nodes: known.url, rules: "known", log });
  new RlnodeClient({ nodes: unknown.url, rules: ["misspelt"], log });
  new RlnodeClient({ nodes: rejecting.url, token: "wrong", log });
  await eventually("all is logged", () => count("error", '"misspelt"') === 1 && count("error", "reject") === 1 && known.requests[0]);
  assert.equal(count("error"), 2);
  assert.deepEqual(known.requests[0].body, { checks: [{ rule: "known", key: [], peek: true }] });
  c.expectRules("known");
  await new Promise((resolve) => setTimeout(resolve, 150));
  assert.equal(known.requests.length, 1); // it has been asked about
});

test("a lost node is logged by default, once a minute", async (t) => {
  const warned = t.mock.method(console, "warn", () => {});
  const c = new RlnodeClient({ nodes: dead });
  for (let i = 0; i < 20; i++) await c.check(q);
  assert.equal(warned.mock.callCount(), 1);
  assert.match(warned.mock.calls[0].arguments[0], /^rlnode: http:\/\/127\.255\.1\.2:4444 is passed over: /);
  const real = performance.now;
  t.mock.method(performance, "now", () => real.call(performance) + 61_000);
  for (let i = 0; i < 5; i++) await c.check(q);
  assert.equal(warned.mock.callCount(), 2);
});

test("whatever is asked, an error is a RequestError", async () => {
  const c = new RlnodeClient({ nodes: dead, log: () => {} });
  const circle = {};
  circle.circle = circle;
  for (const request of [
    undefined, null, 7, "r", { rule: 7, key: "k" }, { rule: {}, key: "k" }, { rule: "r", attributes: [] }, { attributes: "ip" }, { attributes: new Map([["a", "b"]]) },
    { key: "k", limits: "ab" }, { key: "k", limits: [null] }, { key: "k", limits: [7] }, { subjects: "a" }, { subjects: [null] }, { rule: "r", key: "k", cost: 1n },
    { rule: "r", key: "k", cost: "1" }, { rule: "r", key: "k", costs: 5 }, { rule: "r", key: "k", costs: { a: "1" } }, { rule: "r", key: "k", requestId: {} },
    { rule: "r", key: "k", detail: 1n }, { rule: "r", key: "k", other: circle }, { key: "k", namespace: 7, limits: [{ limit: 1, per: "1m" }] },
  ]) await assert.rejects(c.check(request), RequestError, String(request?.rule)); // prettier-ignore
});

test("what passes without a node is granted", async () => {
  const most = (c, more) => c.check({ key: "u", limits: [{ limit: 9, per: "1h" }], mode: "at_most", ...more });
  for (const options of [{}, { onError: "local", local: { limit: 9, per: "1h" } }]) {
    const c = new RlnodeClient({ nodes: dead, ...options });
    assert.equal((await most(c, { cost: 4 })).granted, 4);
    assert.equal((await most(c, { limits: [{ limit: 9, per: "1h", unit: "tokens" }], costs: { tokens: 9 } })).granted, 9);
    assert.equal((await most(c)).granted, 1);
    assert.equal((await c.check(q)).granted, undefined);
  }
});
