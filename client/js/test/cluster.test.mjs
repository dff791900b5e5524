// Real clusters: limits that processes share, and nodes that are killed.
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { RlnodeClient } from "rlnode";
import { closing, cluster, eventually, start } from "./node.mjs";

const here = (name) => fileURLToPath(new URL(name, import.meta.url));

/** app runs app.mjs, and returns its address. */
const app = (t, ...args) =>
  new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [here("app.mjs"), ...args], { stdio: ["ignore", "pipe", "inherit"] });
    t.after(() => child.kill("SIGKILL"));
    child.stdout.once("data", (line) => resolve(String(line).trim()));
    child.once("exit", () => reject(new Error("the app ended")));
  });

test("two processes of an Express app on three nodes share one limit exactly", async (t) => {
  const nodes = await cluster(3);
  t.after(() => Promise.all(nodes.map((n) => n.stop())));
  const apps = await Promise.all(nodes.map((n) => app(t, n.url, 50)));
  for (const k of ["a", "b", "c"]) {
    const all = await Promise.all(Array.from({ length: 160 }, (_, i) => fetch(`${apps[i % 2]}/?k=${k}`)));
    assert.equal(all.filter((r) => r.status === 200).length, 50, `key ${k}`);
    assert.equal(all.filter((r) => r.status === 429).length, 110);
    const refused = all.find((r) => r.status === 429);
    assert.ok(Number(refused.headers.get("retry-after")) > 500);
  }
});

test("a node that is killed under load fails no call", async (t) => {
  const nodes = await cluster(3);
  t.after(() => Promise.all(nodes.map((n) => n.stop())));
  const c = closing(t, new RlnodeClient({ nodes: nodes.slice(0, 2).map((n) => n.url), timeoutMs: 10_000 }));
  const wrong = [];
  const by = new Map();
  let calls = 0;
  let stop = false;
  const load = async (i) => {
    for (let j = 0; !stop; j++) {
      const q = { key: `k${(i * 31 + j) % 400}`, limits: [{ limit: 1_000_000, per: "1h" }] };
      try {
        const d = i % 4 ? await c.check(q) : await c.count({ ...q, limits: [{ ...q.limits[0], from: "first", algorithm: "fixed-window" }] });
        if (d.error || !d.allowed) wrong.push(d.error ?? d);
        by.set(d.node, (by.get(d.node) ?? 0) + 1);
      } catch (e) {
        wrong.push(e);
      }
      calls++;
    }
  };
  const workers = Array.from({ length: 40 }, (_, i) => load(i));
  await eventually("it is under load", () => calls > 3000);
  await nodes[0].stop("SIGKILL");
  const then = calls;
  await eventually("the load goes on", () => calls > then + 5000);
  stop = true;
  await Promise.all(workers);
  assert.deepEqual(wrong, []);
  assert.ok(by.get("n1") > 0 && by.get("n2") > 3000, JSON.stringify([...by]));
  t.diagnostic(`${calls} calls, by node ${JSON.stringify([...by])}`);
});

test("slots outlive the node that their holder uses", async (t) => {
  const ttl = 20_000;
  const rules = `version: 1
rules:
  - {name: render, key: [tenant], limits: [{limit: 2, ttl: ${ttl}ms, algorithm: concurrency}]}
`;
  const nodes = await cluster(3, rules);
  const connectTo = (...which) => closing(t, new RlnodeClient({ nodes: which.map((i) => nodes[i].url), timeoutMs: 20_000, onError: "closed" }));
  const c = connectTo(0, 1);
  const other = connectTo(2, 1);
  t.after(() => Promise.all(nodes.map((n) => n.stop())));

  const ask = (tenant) => ({ rule: "render", key: tenant });
  const take = async (client, tenant, wait = false) => {
    const slot = await client.acquire({ ...ask(tenant), wait });
    assert.ok(slot.slot, `${tenant}: ${slot.error ?? slot.reason}`);
    return slot;
  };
  const isFull = async (tenant) => {
    const { allowed, error, retryAfterMs } = await other.acquire(ask(tenant));
    assert.deepEqual([allowed, error], [false, undefined], tenant);
    assert.ok(retryAfterMs > 0 && retryAfterMs <= ttl, retryAfterMs);
  };
  const usage = async (tenant) => (await other.usage(ask(tenant))).limits[0];

  // Two clients share a limit. A second release frees nothing.
  const first = await take(c, "shared");
  const evicted = await take(c, "shared");
  await isFull("shared");
  assert.equal(await first.release(), true);
  await take(other, "shared");
  assert.equal(await first.release(), true);
  await isFull("shared");
  await other.reset(ask("shared"));

  const tenants = [0, 1, 2, 3, 4, 5]; // with owners on all nodes
  const held = await Promise.all(tenants.map(async (i) => [await take(c, "held-" + i), await take(c, "held-" + i)]));
  for (const i of tenants) await isFull("held-" + i);
  let turns = 0;
  let stop = false;
  const busy = Promise.all(
    tenants.map(async (i) => {
      // What is released just before its owner dies may be held until its end.
      for (; !stop; turns++) assert.equal(await (await take(c, "busy-" + i, true)).release(), true);
    }),
  );
  busy.catch(() => (turns = Infinity)); // it is awaited below
  await eventually("the client is busy", () => turns > 100);

  // Before the kill, which may lose a reset that no copy has yet.
  await eventually("the slot that a reset freed is lost", () => evicted.signal.aborted);
  assert.equal(evicted.signal.reason.code, "slot-lost");
  await nodes[0].stop("SIGKILL");
  const killed = performance.now();
  turns = 0;

  // What is released while other nodes take over can be had by others, once.
  await Promise.all(
    tenants.map(async (i) => {
      assert.equal(await held[i][0].release(), true);
      await eventually("it can be had", async () => (await other.acquire(ask("held-" + i))).slot);
      await isFull("held-" + i);
    }),
  );
  await eventually("the client is busy at another node", () => turns > 100);

  for (const i of tenants) {
    await eventually("slots are renewed at another node", async () => {
      // A copy of a slot may end a little later than the slot did where it was granted.
      const renewed = ttl - (performance.now() - killed) + 500;
      return (await usage("held-" + i)).slots.every((one) => one.expiresMs >= renewed);
    });
    await isFull("held-" + i);
    assert.equal(held[i][1].signal.aborted, false);
  }

  stop = true;
  await busy;
  await c.close();
  for (const i of tenants) {
    assert.equal((await usage("held-" + i)).used, 1); // the other client's
    await eventually("no slot is left", async () => (await usage("busy-" + i)).used === 0, ttl + 20_000);
  }
  await other.close();
});

test("10,000 concurrent checks", async (t) => {
  const node = closing(t, await start());
  const c = closing(t, new RlnodeClient({ nodes: node.url, timeoutMs: 20_000 }));
  const began = Date.now();
  const all = await Promise.all(Array.from({ length: 10_000 }, (_, i) => c.check({ key: "k" + (i % 10), limits: [{ limit: 700, per: "1h", algorithm: "fixed-window" }], consistency: "exact" })));
  t.diagnostic(`${Date.now() - began} ms`);
  assert.equal(all.filter((d) => d.allowed && !d.error).length, 7000);
  assert.equal(all.filter((d) => d.error).length, 0);
});

test("memory is steady", async (t) => {
  const node = closing(t, await start());
  const script = `import { heaps } from ${JSON.stringify(here("memory.mjs"))};
    console.log(JSON.stringify(await heaps([process.argv[1]], 30_000)));`;
  const out = await new Promise((resolve, reject) => {
    const args = ["--expose-gc", "--input-type=module", "-e", script, node.url];
    execFile(process.execPath, args, { cwd: here(".") }, (e, stdout) => (e ? reject(e) : resolve(stdout)));
  });
  const { sizes, failed } = JSON.parse(out);
  assert.equal(failed, 0);
  assert.ok(sizes.at(-1) < sizes[2] * 1.3 + 2, `MB of heap: ${sizes.map((s) => s.toFixed(1))}`);
  t.diagnostic(`MB of heap: ${sizes.map((s) => s.toFixed(1))}`);
});

test("tokens, reservations and blocks of a real node", async (t) => {
  const rules = `version: 1
rules:
  - {name: llm, key: [user], limits: [{limit: 100, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: login, key: [ip], limits: [{limit: 1, per: 1h, algorithm: fixed-window}], block: 30m}
`;
  const node = closing(t, await start({ rules, flags: ["--api-token", "secret-of-a-test"] }));
  await assert.rejects(new RlnodeClient({ nodes: node.url }).check({ rule: "llm", key: "u" }), { httpStatus: 401, code: "unauthorized" });
  const c = closing(t, new RlnodeClient({ nodes: node.url, token: "secret-of-a-test", timeoutMs: 10_000 }));
  const r = await c.reserve({ rule: "llm", key: "u", costs: { tokens: 80 } });
  assert.ok(r.allowed && r.reservation);
  assert.equal((await c.reserve({ rule: "llm", key: "u", costs: { tokens: 80 } })).allowed, false);
  assert.deepEqual((await c.settle(r, { tokens: 30 })).costs, { tokens: 30 });
  assert.equal((await c.settle(r.reservation, { tokens: 60 })).repeated, true);
  assert.equal((await c.usage({ rule: "llm", key: "u" })).limits[0].used, 30);
  await assert.rejects(c.check({ rule: "nothing", key: "u" }), { httpStatus: 404, code: "unknown-rule" });
  await c.check({ rule: "login", key: "192.0.2.1" });
  assert.equal((await c.check({ rule: "login", key: "192.0.2.1" })).allowed, false);
  await c.reset({ rule: "login", key: "192.0.2.1" });
  const d = await c.peek({ rule: "login", key: "192.0.2.1" });
  assert.deepEqual([d.allowed, d.used], [true, 1]);
  const two = await c.check({ subjects: [{ key: "a", limits: [{ limit: 1, per: "1m" }] }, { key: "b", limits: [{ limit: 1, per: "1m" }] }], detail: true });
  assert.equal(two.limits.length, 2);
  const ids = await Promise.all([1, 2].map(() => c.count({ key: "id", limits: [{ limit: 9, per: "1m" }], requestId: "same" })));
  assert.deepEqual(ids.map((x) => x.used), [1, 1]); // prettier-ignore
});

test("one limit of a rule, the bill, and as much as there is", async (t) => {
  const rules = `version: 1
rules:
  - name: api
    key: [user]
    usage: monthly
    limits: [{name: hour, limit: 10, per: 1h, algorithm: fixed-window}, {name: day, limit: 100, per: 24h, algorithm: fixed-window}]
  - {name: plain, key: [user], limits: [{limit: 10, per: 1h, algorithm: fixed-window}]}
`;
  const node = closing(t, await start({ rules }));
  const c = closing(t, new RlnodeClient({ nodes: node.url, timeoutMs: 10_000, onError: "closed" }));
  for (const granted of [7, 3, 0]) {
    const d = await c.check({ rule: "plain", key: "u", cost: 7, mode: "at_most" });
    assert.deepEqual([d.allowed, d.granted], [granted > 0, granted]);
  }

  const q = { rule: "api", key: "u" };
  await c.count({ ...q, cost: 4 });
  const adjusted = await c.adjust({ ...q, cost: -50, limitName: "hour", bill: true });
  assert.deepEqual(adjusted.limits.map((l) => [l.name, l.used, l.applied]), [["hour", 0, -4]]); // prettier-ignore
  assert.deepEqual(adjusted.applied, { requests: -4 });
  const used = async () => (await c.usage(q)).limits.map((l) => l.used);
  assert.deepEqual(await used(), [0, 4]);
  assert.deepEqual((await c.reset({ ...q, limitName: "day" })).limits.map((l) => l.name), ["day"]); // prettier-ignore
  assert.deepEqual(await used(), [0, 0]);

  await assert.rejects(c.reset({ ...q, limitName: "nobody" }), { httpStatus: 404, code: "unknown-limit" });
  await assert.rejects(c.adjust({ ...q, rule: "plain", cost: 1, bill: true }), { httpStatus: 400, code: "bad-value" });
  for (const wrong of [{ limitName: "" }, { limitName: 7 }, { limitName: null }, { bill: "yes" }])
    await assert.rejects(c.adjust({ ...q, cost: 1, ...wrong }), { name: "RequestError", code: "invalid" }, JSON.stringify(wrong));
});
