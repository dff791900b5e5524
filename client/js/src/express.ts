import type { Decision } from "./decision.js";
import { Guard, type Ending, type GuardOptions, type Seen } from "./guard.js";

/** What is used of a request of Express or Connect. */
export interface ExpressRequest {
  method?: string | undefined;
  url?: string | undefined;
  originalUrl?: string;
  ip?: string | undefined;
  socket: { remoteAddress?: string | undefined };
  /** The decision that let the request pass. */
  rlnode?: Decision;
}

export interface ExpressResponse extends Ending {
  statusCode: number;
  setHeader(name: string, value: string): unknown;
  end(body?: string): unknown;
}

export type RateLimitOptions<R extends ExpressRequest = ExpressRequest> = GuardOptions<R>;

const path = (url = "/") => url.split("?", 1)[0]!;

const see = (r: ExpressRequest): Seen => ({ ip: r.ip ?? r.socket.remoteAddress, endpoint: path(r.originalUrl ?? r.url), method: r.method ?? "GET" });

/**
 * A middleware for Express and Connect that lets the server's rules decide. The address is `req.ip`, so Express's "trust proxy" says
 * which proxies are believed.
 */
export function rateLimit<R extends ExpressRequest = ExpressRequest>(options: RateLimitOptions<R>) {
  const guard = new Guard<R>(options);
  return (request: R, response: ExpressResponse, next: (error?: unknown) => void): void => {
    guard.decide(request, see, () => ({ response })).then((v) => {
      for (const [name, value] of Object.entries(v.headers)) response.setHeader(name, value);
      if (v.refusal) {
        response.statusCode = v.refusal.status;
        response.end(v.refusal.body);
        return;
      }
      if (v.decision) request.rlnode = v.decision;
      next();
    }).catch(next); // prettier-ignore
  };
}
