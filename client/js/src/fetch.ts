import { Guard, forwarded, type GuardOptions, type Seen } from "./guard.js";
import { during } from "./slot.js";

export type RateLimitOptions = GuardOptions<Request> & {
  /** How many proxies in front append to X-Forwarded-For; 0: none. Without it, give `ip`, `attributes` or `key`. */
  trustedHops?: number;
};

/**
 * Wraps a handler of requests, as of Deno.serve, Bun.serve and workers, and lets the server's rules decide:
 * `rateLimit({ nodes: [url], trustedHops: 1 })(handler)`.
 */
export function rateLimit(options: RateLimitOptions) {
  const guard = new Guard<Request>(options);
  const see = (r: Request): Seen => ({
    ip: forwarded(r.headers.get("x-forwarded-for"), options.trustedHops ?? 0), endpoint: new URL(r.url).pathname, method: r.method,
  }); // prettier-ignore
  return <A extends unknown[]>(handler: (request: Request, ...more: A) => Response | Promise<Response>) =>
    async (request: Request, ...more: A): Promise<Response> => {
      const v = await guard.decide(request, see, () => ({ signal: request.signal }));
      if (v.refusal) return new Response(v.refusal.body, { status: v.refusal.status, headers: v.headers });
      let response: Response;
      try {
        response = await handler(request, ...more);
        if (v.slot) response = during(response, v.slot, request.method);
      } catch (e) {
        void v.slot?.release();
        throw e;
      }
      for (const [name, value] of Object.entries(v.headers)) {
        try {
          response.headers.set(name, value);
        } catch {
          response = new Response(response.body, response); // as of fetch, its headers can't be changed
          response.headers.set(name, value);
        }
      }
      return response;
    };
}
