// Compiled, not run: the types fit those of the libraries.
import rateLimitOfFastify from "@fastify/rate-limit";
import { ThrottlerModule, type ThrottlerStorage } from "@nestjs/throttler";
import express from "express";
import { rateLimit as expressRateLimit, type Store } from "express-rate-limit";
import Fastify from "fastify";
import { Hono } from "hono";
import { rateLimiter } from "hono-rate-limiter";
import { RateLimiterQueue, RateLimiterUnion, type RateLimiterAbstract } from "rate-limiter-flexible";
import { RlnodeClient, RlnodeError, type CheckRequest, type Decision } from "rlnode";
import { rateLimit as forExpress } from "rlnode/express";
import { RlnodeStore } from "rlnode/express-rate-limit";
import { rateLimit as forFastify } from "rlnode/fastify";
import { RlnodeStore as FastifyStore } from "rlnode/fastify-rate-limit";
import { rateLimit as forFetch } from "rlnode/fetch";
import { rateLimit as forHono } from "rlnode/hono";
import { RlnodeStore as HonoStore } from "rlnode/hono-rate-limiter";
import { RlnodeStorage } from "rlnode/nestjs-throttler";
import { RateLimiterRlnode } from "rlnode/rate-limiter-flexible";

const nodes = ["http://127.0.0.1:8080"];
const client = new RlnodeClient({ nodes, token: "t", onError: "local", local: { limit: 1, per: "1m" } });

const store: Store = new RlnodeStore({ nodes, onError: "open" });
express().use(expressRateLimit({ windowMs: 1000, limit: 5, store }));
express().use(forExpress<express.Request>({ client, cost: (r) => (r.path === "/" ? 1 : { tokens: 2 }), key: (r) => r.header("x") ?? "", rule: "r" }));
express().use(forExpress({ nodes }));

new Hono().use(rateLimiter({ windowMs: 1000, limit: 5, keyGenerator: () => "k", store: new HonoStore({ client }) }));
new Hono<{ Variables: { rlnode: Decision } }>().use(forHono({ nodes, trustedHops: 1 })).get("/", (c) => c.json(c.get("rlnode").remaining));

const app = Fastify();
await app.register(rateLimitOfFastify, { max: 2, store: FastifyStore.with({ nodes }) });
await app.register(forFastify, { nodes, skip: (r) => r.url === "/healthz" });

const storage: ThrottlerStorage = new RlnodeStorage({ nodes });
ThrottlerModule.forRoot({ throttlers: [{ ttl: 1000, limit: 5 }], storage });

const flexible: RateLimiterAbstract = new RateLimiterRlnode({ nodes, points: 5, duration: 1, blockDuration: 5 });
new RateLimiterUnion(flexible);
new RateLimiterQueue(flexible);

const handler: (request: Request, info: { hostname: string }) => Promise<Response> = forFetch({ nodes, ip: () => "192.0.2.1" })(
  (_request: Request, info: { hostname: string }) => new Response(info.hostname),
);
void handler;

const request: CheckRequest = { namespace: "n", key: ["a", "b"], limits: [{ limit: 5, per: "1m", algorithm: "token-bucket", burst: 10 }] };
const d: Decision = await client.check(request, { signal: AbortSignal.timeout(10) });
const left: number = d.remaining;
const r = await client.reserve({ rule: "r", key: "k", costs: { tokens: 4 }, ttlMs: 1000 });
const settled: boolean = (await client.settle(r, { tokens: 2 })).settled;
void [left, settled, d.error instanceof RlnodeError];

// @ts-expect-error neither nodes nor a client
new RlnodeStore({});
// @ts-expect-error not one of the three
new RlnodeClient({ nodes, onError: "maybe" });
// @ts-expect-error no such algorithm
await client.check({ key: "k", limits: [{ limit: 1, per: "1m", algorithm: "guess" }] });
