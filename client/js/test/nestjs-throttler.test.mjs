import "reflect-metadata";
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Controller, Get, Module } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { ThrottlerGuard, ThrottlerModule } from "@nestjs/throttler";
import { RlnodeStorage } from "rlnode/nestjs-throttler";
import { eventually, start } from "./node.mjs";

let node;
before(async () => (node = await start()));
after(() => node.stop());

let prefixes = 0;
const storage = (options = {}) => new RlnodeStorage({ nodes: [node.url], timeoutMs: 10_000, prefix: `p${++prefixes}:`, ...options });

const near = (have, want) => assert.ok(Math.abs(have - want) <= 1, `have ${have}, want about ${want}`);

test("hits, and a block at the first one over the limit", async () => {
  const s = storage();
  for (let i = 1; i <= 3; i++) {
    const r = await s.increment("k", 60_000, 3, 30_000, "default");
    assert.deepEqual([r.totalHits, r.isBlocked, r.timeToBlockExpire], [i, false, 0]);
    near(r.timeToExpire, 60);
  }
  for (let i = 0; i < 3; i++) {
    const r = await s.increment("k", 60_000, 3, 30_000, "default");
    assert.deepEqual([r.totalHits, r.isBlocked], [4, true]); // hits of a block are not counted
    near(r.timeToBlockExpire, 30);
  }
  assert.equal((await s.increment("other", 60_000, 3, 30_000, "default")).totalHits, 1);
  assert.equal((await s.increment("k", 60_000, 3, 30_000, "another")).totalHits, 1);
});

test("after a block the count begins anew", async () => {
  const s = storage();
  for (let i = 0; i < 5; i++) await s.increment("k", 60_000, 2, 300, "default");
  const r = await eventually("the block ends", async () => {
    const r = await s.increment("k", 60_000, 2, 300, "default");
    return !r.isBlocked && r;
  });
  assert.equal(r.totalHits, 1);
  near(r.timeToExpire, 60);
});

test("a window ends", async () => {
  const s = storage();
  await s.increment("k", 200, 5, 200, "default");
  await eventually("the window ends", async () => (await s.increment("k", 200, 5, 200, "default")).totalHits === 1);
});

test("without a block, with a limit of 0", async () => {
  const s = storage();
  await s.increment("k", 60_000, 1, 0, "default");
  const r = await s.increment("k", 60_000, 1, 0, "default");
  assert.deepEqual([r.totalHits, r.isBlocked], [2, true]);
  near(r.timeToBlockExpire, 60);
  assert.equal((await s.increment("none", 60_000, 0, 1000, "default")).isBlocked, true);
});

test("concurrent hits share the limit exactly", async () => {
  const s = storage();
  const all = await Promise.all(Array.from({ length: 200 }, () => s.increment("k", 60_000, 40, 60_000, "default")));
  assert.equal(all.filter((r) => !r.isBlocked).length, 40);
});

test("without a node", async () => {
  const dead = (onError) => new RlnodeStorage({ nodes: ["http://127.255.1.2:4444"], onError }).increment("k", 60_000, 1, 60_000, "default");
  await assert.rejects(dead(), { code: "unavailable" });
  assert.equal((await dead("open")).isBlocked, false);
  assert.equal((await dead("closed")).isBlocked, true);
  const local = new RlnodeStorage({ nodes: ["http://127.255.1.2:4444"], onError: "local" });
  const ask = () => local.increment("k", 60_000, 1, 60_000, "default");
  assert.deepEqual([(await ask()).isBlocked, (await ask()).isBlocked], [false, true]);
});

test("what can't be honoured is refused by name", async () => {
  await assert.rejects(storage().increment("k", 5, 1, 1000, "default"), /ttl/);
  await assert.rejects(storage().increment("k", 1000, 1, 5, "default"), /blockDuration/);
});

test("an application", async (t) => {
  class AppController {
    home() {
      return "ok";
    }
  }
  Get("/")(AppController.prototype, "home", Object.getOwnPropertyDescriptor(AppController.prototype, "home"));
  Controller()(AppController);
  class AppModule {}
  Module({
    imports: [ThrottlerModule.forRoot({ throttlers: [{ ttl: 60_000, limit: 2 }], storage: storage() })],
    controllers: [AppController],
    providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
  })(AppModule);
  const app = await NestFactory.create(AppModule, { logger: false });
  t.after(() => app.close());
  await app.listen(0, "127.0.0.1");
  const ask = async () => fetch(await app.getUrl());
  const first = await ask();
  assert.deepEqual([first.status, first.headers.get("x-ratelimit-remaining")], [200, "1"]);
  await ask();
  const refused = await ask();
  assert.equal(refused.status, 429);
  near(Number(refused.headers.get("retry-after")), 60);
});
