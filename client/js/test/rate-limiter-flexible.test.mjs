import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { RateLimiterMemory, RateLimiterQueue, RateLimiterRes, RateLimiterUnion, RLWrapperBlackAndWhite } from "rate-limiter-flexible";
import { RateLimiterRlnode } from "rlnode/rate-limiter-flexible";
import { RlnodeClient } from "rlnode";
import { closing, eventually, start } from "./node.mjs";

let node;
before(async () => (node = await start()));
after(() => node.stop());

let prefixes = 0;
const limiter = (options = {}) =>
  new RateLimiterRlnode({ nodes: [node.url], timeoutMs: 10_000, keyPrefix: `p${++prefixes}`, points: 2, duration: 60, ...options });

/** refused returns what consume rejects with. */
const refused = async (promise) => {
  const r = await promise.then(() => assert.fail("it is not refused"), (e) => e); // prettier-ignore
  if (!(r instanceof RateLimiterRes)) throw r;
  return r;
};

const near = (have, want, by = 2000) => assert.ok(have <= want && have > want - by, `have ${have}, want about ${want}`);

test("consume", async () => {
  const l = limiter();
  const one = await l.consume("k");
  assert.ok(one instanceof RateLimiterRes);
  assert.deepEqual([one.consumedPoints, one.remainingPoints, one.isFirstInDuration], [1, 1, true]);
  near(one.msBeforeNext, 60_000);
  const two = await l.consume("k");
  assert.deepEqual([two.consumedPoints, two.remainingPoints, two.isFirstInDuration], [2, 0, false]);
  const three = await refused(l.consume("k"));
  assert.deepEqual([three.consumedPoints, three.remainingPoints], [3, 0]);
  near(three.msBeforeNext, 60_000);
  assert.equal((await refused(l.consume("k", 3))).consumedPoints, 6);
  assert.equal((await l.consume("other", 2)).remainingPoints, 0);
});

test("a window ends", async () => {
  const l = limiter({ duration: 0.3 });
  await l.consume("k", 2);
  await refused(l.consume("k"));
  const r = await eventually("the window ends", () => l.consume("k").catch(() => false));
  assert.equal(r.consumedPoints, 1);
});

test("penalty and reward", async () => {
  const l = limiter({ points: 10 });
  await l.consume("k", 4);
  assert.equal((await l.penalty("k", 3)).consumedPoints, 7);
  assert.equal((await l.reward("k", 2)).consumedPoints, 5);
  assert.equal((await l.reward("k")).remainingPoints, 6);
  assert.equal((await l.reward("k", 100)).consumedPoints, 0); // never below 0
  assert.equal((await l.penalty("fresh", 3)).consumedPoints, 3);
});

test("get and delete", async () => {
  const l = limiter();
  assert.equal(await l.get("k"), null);
  assert.equal(await l.delete("k"), false);
  await l.consume("k", 2);
  const r = await l.get("k");
  assert.deepEqual([r.consumedPoints, r.remainingPoints], [2, 0]);
  near(r.msBeforeNext, 60_000);
  assert.equal(await l.delete("k"), true);
  assert.equal(await l.get("k"), null);
  assert.equal((await l.consume("k")).consumedPoints, 1);
});

test("block", async () => {
  const l = limiter();
  await l.consume("k");
  const b = await l.block("k", 30);
  near(b.msBeforeNext, 30_000);
  const r = await refused(l.consume("k"));
  assert.equal(r.consumedPoints, 4);
  near(r.msBeforeNext, 30_000);
  assert.equal((await l.get("k")).consumedPoints, 4);
  assert.equal((await l.reward("k", 2)).consumedPoints, 2);
  assert.equal((await l.penalty("k")).consumedPoints, 3);
  await l.block("k", 5); // a later one counts
  near((await l.get("k")).msBeforeNext, 5000);
  assert.equal(await l.delete("k"), true);
  assert.equal((await l.consume("k")).consumedPoints, 1);
});

test("after a block the count begins anew", async () => {
  const l = limiter();
  await l.consume("k", 2);
  await l.block("k", 0.4);
  await refused(l.consume("k"));
  const r = await eventually("the block ends", () => l.consume("k").catch(() => false));
  assert.equal(r.consumedPoints, 1);
  near(r.msBeforeNext, 60_000);
  await l.block("k", 30); // what the first block left counts for nothing
  assert.equal((await l.get("k")).consumedPoints, 3);
});

test("blockDuration", async () => {
  const l = limiter({ duration: 1, blockDuration: 40 });
  await l.consume("k", 2);
  near((await refused(l.consume("k"))).msBeforeNext, 40_000);
  await new Promise((resolve) => setTimeout(resolve, 1100)); // the window would be over
  const r = await refused(l.consume("k"));
  near(r.msBeforeNext, 40_000, 5000);
});

test("set", async () => {
  const l = limiter({ points: 10 });
  await l.consume("k", 7);
  near((await l.set("k", 3, 20)).msBeforeNext, 20_000);
  const r = await l.consume("k");
  assert.equal(r.consumedPoints, 4);
  near(r.msBeforeNext, 20_000);
  await l.set("k", 0, 20);
  assert.equal((await l.consume("k")).consumedPoints, 1);
  assert.equal((await l.set("fresh", 10, 20)).consumedPoints, 10);
  await refused(l.consume("fresh"));
});

test("a duration of its own", async () => {
  const l = limiter({ points: 5 });
  const one = await l.consume("k", 1, { customDuration: 20 });
  assert.deepEqual([one.consumedPoints, one.isFirstInDuration], [1, true]);
  near(one.msBeforeNext, 20_000);
  const two = await l.consume("k", 2);
  assert.equal(two.consumedPoints, 3);
  near(two.msBeforeNext, 20_000);
  await l.consume("old", 2);
  const old = await l.consume("old", 1, { customDuration: 20 }); // the window has begun
  assert.equal(old.consumedPoints, 3);
  near(old.msBeforeNext, 60_000);
  assert.equal((await l.penalty("p", 2, { customDuration: 10 })).consumedPoints, 2);
  near((await l.get("p")).msBeforeNext, 10_000);
});

test("without an end", async () => {
  const l = limiter({ duration: 0 });
  assert.equal((await l.consume("k", 2)).msBeforeNext, -1);
  assert.deepEqual([(await refused(l.consume("k"))).msBeforeNext, (await l.get("k")).consumedPoints], [-1, 3]);
  const timed = limiter();
  assert.equal((await timed.block("k", 0)).msBeforeNext, -1);
  await refused(timed.consume("k"));
});

test("concurrent points are all counted", async () => {
  const l = limiter({ points: 100 });
  const all = await Promise.allSettled(Array.from({ length: 300 }, () => l.consume("k")));
  assert.equal(all.filter((r) => r.status === "fulfilled").length, 100);
  const counts = all.map((r) => (r.value ?? r.reason).consumedPoints).sort((a, b) => a - b);
  assert.deepEqual(counts, Array.from({ length: 300 }, (_, i) => i + 1));
});

test("concurrent points, and a block at the first one over the limit", async () => {
  const l = limiter({ points: 10, blockDuration: 30 });
  const all = await Promise.allSettled(Array.from({ length: 100 }, () => l.consume("k")));
  assert.equal(all.filter((r) => r.status === "fulfilled").length, 10);
  near((await refused(l.consume("k"))).msBeforeNext, 30_000, 10_000);
});

test("what the base class does: memory blocks, even execution, insurance", async () => {
  const l = limiter({ inMemoryBlockOnConsumed: 3, inMemoryBlockDuration: 20 });
  await l.consume("k", 2);
  near((await refused(l.consume("k"))).msBeforeNext, 20_000);
  assert.equal((await refused(l.consume("k"))).consumedPoints, 0); // nobody is asked
  const even = limiter({ points: 4, duration: 0.8, execEvenly: true });
  await even.consume("k");
  const began = Date.now();
  await even.consume("k");
  assert.ok(Date.now() - began > 50);
  const insuranceLimiter = new RateLimiterMemory({ points: 1, duration: 60 });
  const insured = limiter({ nodes: ["http://127.255.1.2:4444"], insuranceLimiter });
  assert.equal((await insured.consume("k")).remainingPoints, 0);
  await refused(insured.consume("k"));
});

test("with what else is in the package", async () => {
  const union = new RateLimiterUnion(limiter({ keyPrefix: "a" + ++prefixes }), limiter({ keyPrefix: "b" + prefixes, points: 1 }));
  await union.consume("k");
  await assert.rejects(union.consume("k"));
  const listed = new RLWrapperBlackAndWhite({ limiter: limiter(), whiteList: ["vip"], blackList: ["bad"] });
  for (let i = 0; i < 4; i++) await listed.consume("vip");
  await refused(listed.consume("bad"));
  const queue = new RateLimiterQueue(limiter({ points: 1, duration: 0.2 }));
  await queue.removeTokens(1, "k");
  await queue.removeTokens(1, "k");
});

test("without a node", async () => {
  const dead = (onError) => limiter({ nodes: ["http://127.255.1.2:4444"], onError, points: 1 });
  await assert.rejects(dead().consume("k"), { name: "RlnodeError", code: "unavailable" });
  await assert.rejects(dead().get("k"), { code: "unavailable" });
  assert.equal((await dead("open").consume("k")).consumedPoints, 1);
  await refused(dead("closed").consume("k"));
  const local = dead("local");
  await local.consume("k");
  await refused(local.consume("k"));
});

test("a client in place of a store, and what can't be honoured is refused by name", async (t) => {
  const client = closing(t, new RlnodeClient({ nodes: node.url, timeoutMs: 10_000 }));
  const l = new RateLimiterRlnode({ storeClient: client, points: 1, duration: 60, keyPrefix: "c" });
  await l.consume("k");
  l.close();
  await refused(l.consume("k"));
  await assert.rejects(l.consume("k", 1.5), /points/);
  for (const name of ["duration", "blockDuration"]) assert.throws(() => limiter({ [name]: 400 * 86_400 }), new RegExp(name));
  await assert.rejects(l.block("k", 400 * 86_400), /duration/);
  assert.throws(() => new RateLimiterRlnode({ points: 1, duration: 1 }), /nodes/);
});

test("what is for ever is so when it is read", async () => {
  const l = limiter({ points: 1, duration: 1 });
  for (const change of [() => l.block("k", 0), () => l.set("k", 12, 0)]) {
    assert.equal((await change()).msBeforeNext, -1);
    assert.equal((await l.get("k")).msBeforeNext, -1);
    await assert.rejects(l.consume("k"), { msBeforeNext: -1 });
    await l.delete("k");
  }
});
