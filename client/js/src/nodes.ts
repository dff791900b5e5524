import { RlnodeError } from "./errors.js";

const firstPause = 250; // ms for which a node is passed over after its first failure
const lastPause = 5000; // after many
const maxAnswer = 64 << 20; // bytes; a node's are shorter

/** What is believed of a node. A failing one refuses fast, so it is asked if no other is left; a silent one costs time. */
type Condition = "well" | "failing" | "silent";

interface Node {
  base: string;
  condition: Condition;
  failures: number; // one after another
  again: number; // when it may be probed
  probing: boolean;
}

/** Reply is a node's answer with a status below 500. */
export interface Reply {
  node: string;
  status: number;
  headers: Headers;
  text: string;
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

const timedOut = (node: string) => new RlnodeError(0, "timeout", "no answer in time", node);

/** elsewhere: the node is well, and too busy or cut off from another one; the next node may do better. */
const elsewhere = (e: RlnodeError) => e.code === "overloaded" || e.code === "no-owner";

/** untouched: the call was certainly not carried out. */
function untouched(e: RlnodeError): boolean {
  const why = e.cause as { code?: string; message?: string; cause?: { code?: string; message?: string } } | undefined;
  const text = [why?.code, why?.message, why?.cause?.code, why?.cause?.message].join();
  return e.httpStatus === 503 || /refused|ENOTFOUND|EAI_AGAIN|UNREACH|CONNECT_TIMEOUT/i.test(text);
}

/** Nodes asks one node after another until one answers. It probes those that it passes over when there are calls. */
export class Nodes {
  readonly #nodes: Node[];
  readonly #headers: Record<string, string> = { "content-type": "application/json" };
  readonly #live = new Set<AbortController>();

  constructor(
    addresses: readonly string[],
    token: string | undefined,
    private readonly timeoutMs: number,
    private readonly fetch: typeof globalThis.fetch,
    private readonly log: (message: string) => void,
  ) {
    if (!addresses[0] || addresses.length > 64) throw new TypeError("rlnode: nodes: 1 to 64 addresses are wanted");
    this.#nodes = addresses.map((address) => {
      const u = new URL(address);
      if (!/^https?:$/.test(u.protocol) || u.username || u.search || u.hash) throw new TypeError("rlnode: nodes: an address such as http://127.0.0.1:8080 is wanted");
      return { base: u.href.replace(/\/+$/, ""), condition: "well", failures: 0, again: 0, probing: false };
    });
    if (token) this.#headers.authorization = "Bearer " + token;
    new Headers(this.#headers); // throws if the token is not one line
  }

  close(): void {
    for (const c of this.#live) c.abort();
  }

  /** ask posts a body; `repeat` says that it may be carried out twice. It throws a RlnodeError. */
  async ask(path: string, body: string, deadline: number, repeat: boolean): Promise<Reply> {
    const tried = new Set<Node>();
    let last: RlnodeError | undefined;
    for (;;) {
      const [node, more] = this.#choose(tried);
      if (!node) throw last ?? new RlnodeError(0, "unavailable", "no node has answered lately");
      tried.add(node);
      const began = Date.now();
      const left = deadline - began;
      if (left <= 0) throw last ?? timedOut(node.base);
      let e: RlnodeError;
      try {
        const r = await this.#send(node, path, body, Math.min(left, more ? this.timeoutMs / 2 : left));
        if (r.status < 500) {
          this.#answered(node);
          return r;
        }
        e = problem(r);
        if (elsewhere(e)) this.#answered(node);
        else this.#failed(node, "failing", e);
      } catch (failure) {
        e = failure as RlnodeError;
        // A node is not to blame if the call came to it with little time left.
        if (e.code !== "timeout") this.#failed(node, "failing", e);
        else if (Date.now() - began >= this.timeoutMs * 0.45) this.#failed(node, "silent", e);
      } finally {
        node.probing = false;
      }
      last = e;
      if ((!repeat && !untouched(e)) || Date.now() >= deadline) throw e;
    }
  }

  #answered(n: Node): void {
    if (n.condition !== "well") this.log(`rlnode: ${n.base} is asked again`);
    n.condition = "well";
    n.failures = 0;
  }

  #failed(n: Node, how: Condition, e: RlnodeError): void {
    if (n.condition === "well") this.log(`rlnode: ${n.base} is passed over: ${e.message}`);
    n.condition = how;
    n.again = Date.now() + Math.min(firstPause * 2 ** n.failures, lastPause);
    n.failures = Math.min(n.failures + 1, 16);
  }

  /** choose returns the node to ask next, and whether another one would be left after it. */
  #choose(tried: Set<Node>): [Node | undefined, boolean] {
    const now = Date.now();
    const left = this.#nodes.filter((n) => !tried.has(n));
    const well = left.filter((n) => n.condition === "well");
    const known = [...well, ...left.filter((n) => n.condition === "failing")];
    for (const n of left) {
      if (n.condition === "well" || n.probing || n.again > now) continue;
      n.probing = true;
      if (known.length) void this.#probe(n);
      else return [n, false]; // nothing else is left: this call finds out
    }
    return [known[0], known.length > 1];
  }

  /** probe asks whether a node is ready again. It stays known as one that failed until it answers a call. */
  async #probe(n: Node): Promise<void> {
    try {
      const r = await this.#send(n, "/readyz", undefined, this.timeoutMs);
      if (r.status !== 200) throw problem(r);
      if (n.condition !== "well") this.log(`rlnode: ${n.base} is asked again`);
      n.condition = "well";
    } catch (e) {
      if (n.condition !== "well") this.#failed(n, n.condition, e as RlnodeError);
    } finally {
      n.probing = false;
    }
  }

  async #send(n: Node, path: string, body: string | undefined, ms: number): Promise<Reply> {
    const abort = new AbortController();
    this.#live.add(abort);
    let late = false;
    const timer = setTimeout(() => {
      late = true;
      abort.abort();
    }, ms);
    try {
      const { fetch } = this;
      const method = body === undefined ? "GET" : "POST";
      const r = await fetch(n.base + path, { method, headers: this.#headers, body: body ?? null, signal: abort.signal, redirect: "manual" });
      if (Number(r.headers.get("content-length")) > maxAnswer) throw new Error("the answer is too long");
      return { node: n.base, status: r.status, headers: r.headers, text: await r.text() };
    } catch (e) {
      if (late) throw timedOut(n.base);
      const why = e as Error & { cause?: Error };
      throw new RlnodeError(0, "unavailable", why.cause?.message || why.message, n.base, e);
    } finally {
      clearTimeout(timer);
      this.#live.delete(abort);
    }
  }
}
