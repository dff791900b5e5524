import { Guard, forwarded, type Ending, type Ends, type GuardOptions, type Seen } from "./guard.js";
import { during } from "./slot.js";

/** What is used of Hono's context. */
export interface HonoContext {
  req: { method: string; path: string; raw?: unknown; header(name: string): string | undefined };
  res?: Response;
  env: unknown;
  set(name: never, value: never): void;
  header(name: string, value: string): void;
  body(body: string, status: never): Response;
}

export type RateLimitOptions<C extends HonoContext = HonoContext> = GuardOptions<C> & {
  /** How many proxies in front append to X-Forwarded-For; 0: none. */
  trustedHops?: number;
};

/** The address as @hono/node-server, Bun and Deno pass it on. */
function address(c: HonoContext): string | undefined {
  const env = (c.env ?? {}) as { incoming?: { socket?: { remoteAddress?: string } }; remoteAddr?: { hostname?: string } };
  return env.incoming?.socket?.remoteAddress ?? env.remoteAddr?.hostname;
}

/** The response is that of @hono/node-server. */
const ends = (c: HonoContext): Ends => ({
  response: (c.env as { outgoing?: Ending } | undefined)?.outgoing, signal: (c.req.raw as Request | undefined)?.signal,
}); // prettier-ignore

/** A middleware for Hono that lets the server's rules decide. `c.get("rlnode")` is the decision. */
export function rateLimit<C extends HonoContext = HonoContext>(options: RateLimitOptions<C>) {
  const guard = new Guard<C>(options);
  const see = (c: C): Seen => ({
    ip: forwarded(c.req.header("x-forwarded-for"), options.trustedHops ?? 0) ?? address(c), endpoint: c.req.path, method: c.req.method,
  }); // prettier-ignore
  return async (c: C, next: () => Promise<void>): Promise<Response | void> => {
    const v = await guard.decide(c, see, () => ends(c));
    for (const [name, value] of Object.entries(v.headers)) c.header(name, value);
    if (v.refusal) return c.body(v.refusal.body, v.refusal.status as never);
    if (v.decision) c.set("rlnode" as never, v.decision as never);
    const { slot } = v;
    if (!slot) return next();
    try {
      await next();
      c.res = during(c.res!, slot, c.req.method);
    } catch (e) {
      void slot.release();
      throw e;
    }
  };
}
