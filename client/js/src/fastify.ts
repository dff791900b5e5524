import type { Decision } from "./decision.js";
import { Guard, type Ending, type GuardOptions, type Seen } from "./guard.js";

/** What is used of Fastify. */
export interface FastifyRequestLike {
  ip: string;
  method: string;
  url: string;
  /** The decision that let the request pass. */
  rlnode?: Decision | null;
}

interface Reply {
  raw: Ending;
  header(name: string, value: string): unknown;
  code(status: number): { send(body: string): unknown };
}

interface Instance {
  decorateRequest(name: "rlnode", value: null): unknown;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  addHook(name: "onRequest", hook: (request: any, reply: any) => Promise<any>): unknown;
}

export type RateLimitOptions = GuardOptions<FastifyRequestLike>;

const see = (r: FastifyRequestLike): Seen => ({ ip: r.ip, endpoint: r.url.split("?", 1)[0]!, method: r.method });

/**
 * A plugin for Fastify that lets the server's rules decide, for all routes of the instance that it is registered with:
 * `app.register(rateLimit, { nodes: [url] })`. Fastify's trustProxy says which proxies are believed.
 */
// eslint-disable-next-line @typescript-eslint/require-await
export async function rateLimit(app: Instance, options: RateLimitOptions): Promise<void> {
  const guard = new Guard<FastifyRequestLike>(options);
  app.decorateRequest("rlnode", null);
  app.addHook("onRequest", async (request: FastifyRequestLike, reply: Reply) => {
    const v = await guard.decide(request, see, () => ({ response: reply.raw }));
    for (const [name, value] of Object.entries(v.headers)) reply.header(name, value);
    request.rlnode = v.decision ?? null;
    if (v.refusal) return reply.code(v.refusal.status).send(v.refusal.body);
    return undefined;
  });
}

// What fastify-plugin would set: the hook is for the instance that registers it, and not for one below.
Object.assign(rateLimit, { [Symbol.for("skip-override")]: true, [Symbol.for("fastify.display-name")]: "rlnode" });
