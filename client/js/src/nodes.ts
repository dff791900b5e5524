import { alarm, now } from "./clock.js";
import { RlnodeError } from "./errors.js";
import type { Journal } from "./journal.js";

const firstPause = 250; // ms for which a node is passed over after its first failure; doubled with each, up to
const lastPause = 5000;
const maxAnswer = 1 << 20; // bytes of the answer to one call
const maxBatchAnswer = 64 << 20; // the node's own bound

// What is wrong with a node. A failing one refuses fast, so it is asked if no other is left; a silent one costs time.
const failing = 1;
const silent = 2;

interface Node {
  base: string;
  bad: number; // 0, failing or silent
  failures: number; // one after another
  again: number; // when it may be probed
  probing?: boolean;
}

/** Reply is a node's answer with a status below 500. */
export interface Reply {
  node: string;
  status: number;
  headers: Headers;
  text: string;
  /** By `now`: no later than the request was sent. */
  sent: number;
}

/** parse returns what a node says; undefined if it is no JSON. */
export function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** problem returns a reply as an error. */
export function problem(r: Reply): RlnodeError {
  const { code = "unknown", detail = r.text.slice(0, 200) } = (parse(r.text) ?? {}) as { code?: string; detail?: string };
  return new RlnodeError(r.status, code, detail, r.node);
}

/** rejects: this says that the node rejects the client: its token is wrong, or lacks the scope. */
export const rejects = (status: number, code: () => string): boolean => status === 401 || (status === 403 && code() === "forbidden");

/** textOf reads an answer of at most `bound` bytes. */
async function textOf(r: Response, bound: number, node: string): Promise<string> {
  const reader = r.body?.getReader();
  if (!reader) return r.text(); // a platform that does not stream
  const decoder = new TextDecoder();
  let text = "";
  for (let size = 0; ; ) {
    const { value } = await reader.read();
    if (!value) return text + decoder.decode();
    if ((size += value.length) > bound) throw new RlnodeError(0, "bad-answer", `it sends over ${bound} bytes`, node);
    text += decoder.decode(value, { stream: true });
  }
}

/** untouched: the call was certainly not carried out. */
function untouched(e: RlnodeError): boolean {
  const why = e.cause as (Error & { code?: string; cause?: Error & { code?: string } }) | undefined;
  return e.httpStatus === 503 || /refused|ENOTFOUND|EAI_AGAIN|UNREACH|CONNECT_TIMEOUT/i.test([why?.code, why?.message, why?.cause?.code, why?.cause?.message].join());
}

/** passes: the owner can't be reached, or has not been replaced yet. */
export const passes = (e: unknown): boolean => /^(no-owner|try-again)$/.test((e as RlnodeError).code);

/** Nodes asks one node after another until one answers. It probes those that it passes over when there are calls. */
export class Nodes {
  readonly #nodes: Node[];
  readonly #headers: Record<string, string> = { "content-type": "application/json" };
  readonly #live = new Set<AbortController>();
  /** How many were answered. */
  answers = 0;

  constructor(
    addresses: readonly string[],
    token: string | undefined,
    private readonly timeoutMs: number,
    private readonly fetch: typeof globalThis.fetch,
    private readonly journal: Journal,
  ) {
    if (!addresses[0] || addresses.length > 64) throw new TypeError("rlnode: nodes: 1 to 64 addresses are wanted");
    this.#nodes = addresses.map((address) => {
      const { protocol, username, search, hash, href } = new URL(address);
      if (!/^https?:$/.test(protocol) || username || search || hash) throw new TypeError(`rlnode: nodes: ${protocol}… is no address such as http://127.0.0.1:8080`);
      return { base: href.replace(/\/+$/, ""), bad: 0, failures: 0, again: 0 };
    });
    if (token) this.#headers.authorization = "Bearer " + token;
    new Headers(this.#headers); // throws if the token is not one line
  }

  close(): void {
    for (const c of this.#live) c.abort();
  }

  /**
   * ask posts a body; `repeat` says that it may be carried out twice. If a node rejects this client, one other is tried, which may have
   * a newer list of tokens. It throws a RlnodeError.
   */
  async ask(path: string, body: string, deadline: number, repeat: boolean): Promise<Reply> {
    const tried = new Set<Node>();
    const whole = Math.min(this.timeoutMs, deadline - now());
    let rejection: Reply | undefined;
    for (let last = new RlnodeError(0, "unavailable", "no node has answered lately"); ; ) {
      const [n, more] = this.#choose(tried);
      const began = now();
      if (!n || began >= deadline) {
        if (rejection) return this.#rejected(rejection);
        throw last;
      }
      tried.add(n);
      try {
        const r = await this.#send(n, path, body, Math.min(deadline - began, more ? whole / 2 : Infinity));
        if (r.status >= 500) throw problem(r);
        this.#well(n);
        this.answers++;
        if (!rejects(r.status, () => problem(r).code)) return r;
        if (rejection || !more) return this.#rejected(rejection ?? r);
        rejection = r;
      } catch (e) {
        const why = e as RlnodeError;
        // An overloaded node, or one that can't reach another one, is well. A silent one is not to blame if it had little time.
        if (passes(why) || /^(overloaded|too-many-(reservations|slots))$/.test(why.code)) this.#well(n);
        else if (why.code !== "timeout") this.#mark(n, failing, why);
        else if (now() - began > this.timeoutMs * 0.45) this.#mark(n, silent, why);
        if (rejection) return this.#rejected(rejection);
        // Any other node would ask the same owner for room.
        if (/^too-many-/.test(why.code) || (!repeat && !untouched(why))) throw why;
        // That it passes says more than what is wrong with another node.
        if (!passes(last)) last = why;
      } finally {
        n.probing = false;
      }
    }
  }

  #rejected(r: Reply): Reply {
    this.journal.say("error", "rejection", `nodes reject this client: ${problem(r).message}`);
    return r;
  }

  #well(n: Node): void {
    n.failures = 0;
    this.#mark(n, 0);
  }

  #mark(n: Node, bad: number, why?: Error): void {
    if (bad) this.journal.say("warn", n.base, `${n.base} is passed over: ${why?.message}`);
    else if (n.bad) this.journal.unsay(n.base, n.base + " is asked again");
    n.bad = bad;
    if (bad) n.again = now() + Math.min(firstPause * 2 ** n.failures++, lastPause);
  }

  /** choose returns the node to ask next, and whether another one would be left after it. */
  #choose(tried: Set<Node>): [Node | undefined, boolean] {
    const left = this.#nodes.filter((n) => !tried.has(n)).sort((a, b) => a.bad - b.bad);
    const known = left.filter((n) => n.bad < silent);
    for (const n of left) {
      if (!n.bad || n.probing || n.again > now()) continue;
      n.probing = true;
      if (!known[0]) return [n, false]; // nothing else is left: this call finds out
      void this.#probe(n);
    }
    return [known[0], known.length > 1];
  }

  /** probe asks whether a node is ready again. Its failures stay until it answers a call. */
  async #probe(n: Node): Promise<void> {
    try {
      const r = await this.#send(n, "/readyz", null, this.timeoutMs);
      if (r.status !== 200) throw problem(r);
      this.#mark(n, 0);
    } catch (e) {
      if (n.bad) this.#mark(n, n.bad, e as Error);
    }
    n.probing = false;
  }

  async #send(n: Node, path: string, body: string | null, ms: number): Promise<Reply> {
    const abort = new AbortController();
    this.#live.add(abort);
    let late = false;
    const cancel = alarm(ms, () => {
      late = true;
      abort.abort();
    });
    try {
      const { fetch } = this;
      const sent = now();
      const r = await fetch(n.base + path, { method: body ? "POST" : "GET", headers: this.#headers, body, signal: abort.signal, redirect: "manual" });
      const text = await textOf(r, path.endsWith("/batch") ? maxBatchAnswer : maxAnswer, n.base);
      return { node: n.base, status: r.status, headers: r.headers, text, sent };
    } catch (e) {
      abort.abort(); // of an answer that is too long, the rest
      if (e instanceof RlnodeError) throw e;
      const why = ((e as Error).cause ?? e) as Error;
      throw new RlnodeError(0, late ? "timeout" : "unavailable", late ? "no answer in time" : why.message, n.base, e);
    } finally {
      cancel();
      this.#live.delete(abort);
    }
  }
}
