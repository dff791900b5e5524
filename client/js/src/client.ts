import { alarm, later, now, sleep } from "./clock.js";
import { camel, decide, decisionOf, rateHeaders, type Decision, type Reservation, type Settlement, type Usage } from "./decision.js";
import { RequestError, RlnodeError } from "./errors.js";
import { Journal, type Log } from "./journal.js";
import { Local } from "./local.js";
import { Nodes, parse, passes, problem, rejects, type Reply } from "./nodes.js";
import { acquireBody, checkBody, settleBody, slotBody, targetBody, type AcquireRequest, type AdjustRequest, type Built, type CheckRequest, type Costs, type Limit, type Mode, type ReserveRequest, type ResetRequest, type Target } from "./request.js"; // prettier-ignore
import { RefusedError, Slot, type Keeper } from "./slot.js";

/** What a check is answered if no node decides it: "open" allows, "closed" refuses, "local" counts in this process. */
export type OnError = "open" | "closed" | "local";

/** What a check is answered if nodes reject this client, by 401, or by 403 with the code "forbidden". */
export type OnRejected = "closed" | "open";

export interface ClientOptions {
  /** Addresses of nodes, the preferred one first, such as "http://10.0.0.1:8080". */
  nodes: string | readonly string[];
  /** Sent as a bearer token. It needs the scope check, and adjust for adjust() and reset(). */
  token?: string | undefined;
  /** "open" unless said. Failures that a stranger could cause are refused whatever it says. */
  onError?: OnError | undefined;
  /** "closed" unless said. One other node is tried before. */
  onRejected?: OnRejected | undefined;
  /**
   * Names of rules that are constants of this program, not chosen by its callers. If one of them does not exist, `onError` decides; any
   * other unknown rule is refused. The client asks a node about them, and about the token, when it is made, and logs what is wrong.
   */
  rules?: string | readonly string[] | undefined;
  /** With onError "local": the limits of each subject (a rule's key, or all attributes but endpoint and method) whose check brings none. */
  local?: Limit | readonly Limit[] | undefined;
  /** The time from sending a call to its answer, over all nodes that are tried; 1,000 unless said. It waits as long again for its turn. */
  timeoutMs?: number | undefined;
  /** Requests with checks that are in flight at once (4); further checks wait and share the next ones. */
  maxInFlight?: number | undefined;
  /** Checks that share a request (256); 1: none do. */
  maxBatch?: number | undefined;
  /** Checks that wait, and other calls that do (10,000 each); calls beyond it are refused at once. */
  maxQueue?: number | undefined;
  /** In place of the global fetch. */
  fetch?: typeof fetch | undefined;
  /**
   * Told, each at most once a minute, that a node is passed over ("warn"), and that nodes reject the token or don't know one of `rules`
   * ("error"); and that a node is asked again ("info"). The console unless said.
   */
  log?: Log | undefined;
}

export interface CallOptions {
  /** Ends the call: it rejects with the signal's reason. A reservation or a slot that is granted later is given back. */
  signal?: AbortSignal | undefined;
}

const maxAlone = 64; // requests in flight that carry one call only
const maxBatchBytes = 4 << 20;
const setupDelay = 100; // ms before nodes are asked about the token and the rules: first comes what the program asks
const setupPause = 5000; // ms before that is tried again
const ownerPause = 50; // ms before a call is repeated whose owner can't be reached

/** tick runs f once all that happens now has happened: checks of that time share a request. */
const tick: (f: () => void) => void = typeof setImmediate === "function" ? setImmediate : queueMicrotask;

/**
 * apart: what waits for the work of another request never goes on here, so each call has queues of its own. Work that is under way
 * ends with the request that began it.
 */
const apart = globalThis.navigator?.userAgent === "Cloudflare-Workers";

/** nap sleeps without keeping the process alive. */
const nap = (ms: number) => new Promise<void>((resolve) => later(ms, resolve));

/** Call is a call in progress. */
interface Call extends Built {
  path: string;
  repeat: boolean;
  until: number; // when it ends without an answer
  ms: number; // how long it may take once it is sent
  answers: number; // of nodes, until it began to wait
  sent?: boolean;
  ended?: boolean;
  /** end ends the call with an answer or an error. If it has ended, what a late answer takes is given back. */
  end(reply: Answer | undefined, error?: unknown): void;
}

/** Answer is a reply to one call. That of a call in a batch has no status. */
interface Answer extends Partial<Reply> {
  node: string;
  json: unknown;
}

/** Lane is a queue of calls, and the requests that carry them. */
interface Lane {
  queue: Call[];
  inFlight: number;
  maxInFlight: number;
  maxBatch: number;
  scheduled?: boolean;
}

/** A client of a cluster. Make one and share it; it holds no connection open by itself. */
export class RlnodeClient {
  /** The option's value; stores that are given this client follow it. */
  readonly onError: OnError | undefined;
  readonly #options: ClientOptions;
  readonly #journal: Journal;
  readonly #rules: Set<string>; // constants of this program
  readonly #nodes: Nodes;
  readonly #local: Local | undefined;
  readonly #timeoutMs: number;
  readonly #maxQueue: number;
  readonly #together: Lane;
  readonly #alone: Lane;
  readonly #calls = new Set<Call>(); // all in progress, the oldest first
  readonly #rests = new Set<AbortController>(); // that calls take, each with what ends it
  readonly #slots = new Set<Slot>(); // that are held
  readonly #reserved = new Map<string, Slot>(); // those of reservations, by their ids
  readonly #keeper: Keeper = { renew: (id, ms) => this.#renew(id, ms), release: (id) => this.#release(id), ended: (slot) => this.#ended(slot) };
  #closed = false;
  #watching: (() => void) | undefined; // ends it

  /** @param parent whose call this client makes: it has the parent's rules and log. */
  constructor(options: ClientOptions, parent?: RlnodeClient) {
    const { nodes, token, onError, onRejected, rules = [], local, timeoutMs = 1000, maxInFlight = 4, maxBatch = 256, maxQueue = 10_000 } = options;
    for (const [name, value, top] of [["timeoutMs", timeoutMs, 3.6e6], ["maxInFlight", maxInFlight, 256], ["maxBatch", maxBatch, 1e4], ["maxQueue", maxQueue, 1e6]] as const) // prettier-ignore
      if (!(value >= 1 && value <= top)) throw new TypeError(`rlnode: ${name} is ${value}; 1 to ${top} is wanted`);
    if (!["open", "closed", "local", undefined].includes(onError)) throw new TypeError(`rlnode: onError is ${onError}; open, closed or local is wanted`);
    if (!["open", "closed", undefined].includes(onRejected)) throw new TypeError(`rlnode: onRejected is ${onRejected}; open or closed is wanted`);
    this.onError = onError;
    this.#options = options;
    this.#journal = parent ? parent.#journal : new Journal(options.log);
    this.#rules = parent ? parent.#rules : new Set();
    if (onError === "local") {
      const limits = [local ?? []].flat();
      if (!limits[0]) throw new RequestError('local: onError "local" needs the limits of checks that bring none');
      this.#local = parent ? parent.#local : new Local(limits);
    }
    this.#timeoutMs = timeoutMs;
    this.#maxQueue = maxQueue;
    this.#together = { queue: [], inFlight: 0, maxInFlight, maxBatch };
    this.#alone = { queue: [], inFlight: 0, maxInFlight: maxAlone, maxBatch: 1 };
    this.#nodes = new Nodes([nodes].flat(), token, timeoutMs, options.fetch ?? ((...args) => fetch(...args)), this.#journal);
    if (!parent && token) void this.#checkSetup([]);
    if (!parent) this.expectRules(...[rules].flat());
  }

  /** Adds to the option `rules`. Middlewares call it for theirs. */
  expectRules(...names: readonly string[]): void {
    const added = names.filter((name) => !this.#rules.has(name));
    for (const name of added) this.#rules.add(name);
    if (added[0]) void this.#checkSetup(added);
  }

  /** checkSetup asks nodes, until one answers, whether they accept the token and know these rules. */
  async #checkSetup(rules: readonly string[]): Promise<void> {
    if (apart) return; // nothing may be asked there before there is a request
    await nap(setupDelay);
    // A key of no values fits only a rule without key attributes, and a peek takes nothing from that, either.
    const body = JSON.stringify({ checks: rules.map((rule) => ({ rule, key: [], peek: true })) });
    for (let asked = false; !asked && !this.#closed; ) {
      try {
        const r = await this.#nodes.ask("/v1/check/batch", body, now() + this.#timeoutMs, true);
        const { results } = (parse(r.text) ?? {}) as { results?: { error?: { code: string } }[] };
        for (const [i, rule] of rules.entries()) if (results?.[i]?.error?.code === "unknown-rule") this.#unknownRule(rule, r.node);
        asked = true;
      } catch {
        await nap(setupPause);
      }
    }
  }

  #unknownRule(rule: string, node: string): void {
    this.#journal.say("error", "rule " + rule, `the rule ${JSON.stringify(rule)} of this program does not exist at ${node}`);
  }

  /** Logs why a request is refused that could not be decided; for middlewares. */
  complain(error: RlnodeError): void {
    this.#journal.say("error", "refused", `requests are refused, since their checks can't be decided: ${error.message}`);
  }

  /**
   * Asks whether this may happen now, and takes its cost if so: from all limits that apply, or from none. A decision comes even if no
   * node decides (`decidedBy: "error"`). It rejects with a RlnodeError if a node rejects the call, such as with an unknown rule.
   */
  async check(request: CheckRequest, options?: CallOptions): Promise<Decision> {
    return this.#delayed(await this.#decide("check", request, undefined, options), request, options);
  }

  /** The decision that check would make; takes nothing. */
  peek(request: CheckRequest, options?: CallOptions): Promise<Decision> {
    return this.#decide("check", request, "peek", options);
  }

  /** Takes the cost whether or not it fits; the decision is the one of a check. */
  async count(request: CheckRequest, options?: CallOptions): Promise<Decision> {
    return this.#delayed(await this.#decide("check", request, "count", options), request, options);
  }

  /** A check whose cost is an estimate, to be settled. Without a `requestId`, one that is repeated may count twice. */
  async reserve(request: ReserveRequest, options?: CallOptions): Promise<Reservation> {
    const began = now();
    const d: Reservation = { reservation: "", ...(await this.#decide("reserve", { ...request, ttlMs: request.ttlMs ?? 60_000 } as CheckRequest, undefined, options)) };
    const { slot, expiresMs = 0 } = d as { slot?: string; expiresMs?: number };
    // It is held from now on: it may last for less than the delay.
    const held = slot ? this.#hold(d, began + expiresMs, options) : undefined;
    if (held) d.signal = held.signal;
    try {
      return await this.#delayed(d, request, options);
    } catch (e) {
      void this.settle(d, {}).catch(() => 0); // nobody else knows the reservation. Its slot is released, too
      throw e;
    }
  }

  /**
   * Takes a slot of each limit with the algorithm "concurrency" that applies, and the costs from the limits beside them: all or nothing.
   * The slot renews itself until it is released: `await using slot = await client.acquire(…)`, or see withSlot. Look at `allowed` first.
   * With `wait`, a call that finds no free slot asks again, in growing pauses of up to a second, until its signal ends.
   */
  async acquire(request: AcquireRequest, options?: CallOptions): Promise<Slot> {
    acquireBody(request, "x"); // throws if it is wrong
    for (let pause = 25; ; pause = Math.min(2 * pause, 1000)) {
      const slot = await this.#acquire(request, options);
      if (slot.allowed || !request.wait || slot.never || slot.denied || slot.error) return slot;
      await this.#rest(Math.min(pause, slot.retryAfterMs || pause), options);
    }
  }

  /**
   * Runs work while it holds a slot, and returns its result. The slot is released when work ends, however it does. If there is no slot, it
   * throws a RefusedError; if the slot is lost, the signal that work gets ends.
   */
  async withSlot<T>(request: AcquireRequest, work: (signal: AbortSignal, slot: Slot) => T | Promise<T>, options?: CallOptions): Promise<T> {
    const slot = await this.acquire(request, options);
    if (!slot.allowed) throw new RefusedError(slot);
    try {
      return await work(slot.signal, slot);
    } finally {
      await slot.release();
    }
  }

  /**
   * Replaces a reservation's estimate by what was used, once, at any node; no costs cancel all of it. An empty reservation settles
   * nothing.
   */
  settle(reservation: string | { reservation: string; costs?: Costs }, costs?: Costs, options?: CallOptions): Promise<Settlement> {
    const one = typeof reservation === "string" ? { reservation } : reservation;
    const id = one.reservation;
    if (!id) return Promise.resolve({ reservation: id, settled: false, costs: {}, repeated: false });
    this.#reserved.get(id)?.forget();
    return this.#tell<Settlement>("settle", () => settleBody(id, costs ?? one.costs ?? {}), options);
  }

  /** Adds to what a subject has used: a penalty, or a reward below 0. It takes effect at most once, and never goes below 0. */
  adjust(request: AdjustRequest, options?: CallOptions): Promise<Usage> {
    return this.#tell<Usage>("adjust", () => targetBody(request, crypto.randomUUID(), true), options, request.requestId !== null);
  }

  /** What a subject has used. Without limits: of the limits of which the node that answers knows. */
  usage(target: Target, options?: CallOptions): Promise<Usage> {
    return this.#tell<Usage>("usage", () => targetBody(target), options);
  }

  /** Makes a subject's counters fresh; without limits, all of them. */
  reset(request: ResetRequest, options?: CallOptions): Promise<Usage> {
    return this.#tell<Usage>("reset", () => targetBody(request, crypto.randomUUID()), options);
  }

  /** Releases all slots, and ends all calls with a RlnodeError of the code "closed". It resolves once the slots are released. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#watching?.();
    for (const c of this.#calls) c.end(undefined, closed());
    for (const stop of this.#rests) stop.abort(closed());
    if (this.#slots.size) await Promise.all(Array.from(this.#slots, (slot) => slot.release()));
    this.#nodes.close();
  }

  /** acquire makes one attempt. It has an id, so that one that is sent twice gets one slot. */
  async #acquire(request: AcquireRequest, options: CallOptions | undefined): Promise<Slot> {
    const built = acquireBody(request, request.requestId ?? crypto.randomUUID());
    let d: Decision;
    let sent = 0;
    try {
      const r = await this.#call("acquire", built, options);
      sent = r.sent ?? 0;
      d = read(r, request, false);
      const { slot, expiresMs } = d as Partial<Slot> & { expiresMs?: number };
      if (slot && !(expiresMs! > 0)) throw failure("bad-answer", "it gives a slot without a time");
    } catch (e) {
      d = this.#undecided(e, built, request.rule, options);
    }
    return this.#hold(d, sent + ((d as { expiresMs?: number }).expiresMs ?? 0), options);
  }

  #hold(d: Decision, until: number, options: CallOptions | undefined): Slot {
    const slot = new Slot(d, this.#keeper, until, options?.signal);
    if (!slot.slot) return slot;
    this.#slots.add(slot);
    const { reservation } = slot as Partial<Reservation>;
    if (reservation) this.#reserved.set(reservation, slot);
    if (this.#closed) void slot.release();
    return slot;
  }

  /** giveBack cancels what an answer takes that nobody waits for any more. To settle a reservation releases its slot, too. */
  #giveBack({ json }: Answer): void {
    const { allowed, reservation, slot } = (json ?? {}) as { allowed?: boolean; reservation?: string; slot?: string };
    if (allowed && reservation) void this.settle(reservation, {}).catch(() => 0);
    else if (allowed && slot) void this.#release(slot);
  }

  async #renew(id: string, ms: number): Promise<number> {
    const built = { ...slotBody(id), ms: Math.max(1, Math.min(ms, this.#timeoutMs)) };
    const r = await this.#call("renew", built, undefined);
    if (r.status !== 200) throw problem(r as Reply);
    const { expires_ms: expires } = (r.json ?? {}) as { expires_ms?: number };
    if (!(expires! > 0)) throw badAnswer(r);
    return r.sent! + expires!;
  }

  /** release gives a slot back, even while the client is being closed. It repeats the call while there is time. */
  async #release(id: string): Promise<boolean> {
    const deadline = now() + this.#timeoutMs;
    for (let pause = 25; ; pause *= 2) {
      try {
        return (await this.#nodes.ask("/v1/release", slotBody(id).body, deadline, true)).status === 200;
      } catch {
        if (now() + pause >= deadline) return false;
      }
      await sleep(pause);
    }
  }

  #ended(slot: Slot): void {
    this.#slots.delete(slot);
    this.#reserved.delete((slot as Partial<Reservation>).reservation!);
  }

  /** decide makes a check or a reservation. Only the nodes' own trouble may let it pass: a stranger could cause the rest. */
  async #decide(path: string, request: CheckRequest, mode: Mode | undefined, options: CallOptions | undefined): Promise<Decision> {
    const built = checkBody(request, mode);
    let d: Decision;
    try {
      d = read(await this.#call(path, built, options), request, built.counts);
      if (path !== "check" && d.allowed && !(d as Reservation).reservation) throw failure("bad-answer", "it reserves without an id");
    } catch (e) {
      d = this.#undecided(e, built, request.rule, options);
    }
    return d;
  }

  /** delayed returns a decision, after its delay if the request is to wait. */
  async #delayed<D extends Decision>(d: D, request: CheckRequest, options: CallOptions | undefined): Promise<D> {
    if (request.wait && d.allowed && d.delayMs) await this.#rest(d.delayMs, options);
    return d;
  }

  /** rest waits for as long as the call and the client last. */
  async #rest(ms: number, options: CallOptions | undefined): Promise<void> {
    if (this.#closed) throw closed();
    const signal = options?.signal;
    const stop = new AbortController();
    const follow = () => stop.abort(signal!.reason);
    signal?.throwIfAborted();
    signal?.addEventListener("abort", follow);
    this.#rests.add(stop);
    try {
      await sleep(ms, stop.signal);
    } finally {
      this.#rests.delete(stop);
      signal?.removeEventListener("abort", follow);
    }
  }

  /** undecided returns the decision of a check that no node made, or throws the error. What it allows, it grants. */
  #undecided(e: unknown, built: Built, rule: string | undefined, options: CallOptions | undefined): Decision {
    options?.signal?.throwIfAborted(); // its reason may be a RlnodeError, too, as of a lost slot
    if (!(e instanceof RlnodeError) || e.code === "closed") throw e;
    const d = this.#onError(e, built, rule);
    const { mode, cost, costs } = built.fields.subjects?.[0] ?? built.fields;
    if (d.allowed && mode === "at_most") d.granted = costs ? Math.max(cost ?? 0, ...(Object.values(costs) as number[])) : (cost ?? 1);
    return d;
  }

  #onError(e: RlnodeError, { fields }: Built, rule: string | undefined): Decision {
    if (rejects(e.httpStatus, () => e.code)) {
      if (this.#options.onRejected === "open") return decide({ allowed: true, error: e });
      throw e;
    }
    const mine = e.httpStatus === 404 && e.code === "unknown-rule" && this.#rules.has(rule!);
    if (mine) this.#unknownRule(rule!, e.node);
    else if (e.httpStatus > 0 && e.httpStatus < 500) throw e;
    const full = e.code === "queue-full";
    return (!full && this.#local?.decide(fields, e)) || decide({ allowed: !full && this.onError !== "closed", error: e });
  }

  /** tell makes a call that is no check. */
  async #tell<T>(path: string, build: () => Built, options: CallOptions | undefined, repeat = true): Promise<T> {
    const r = await this.#call(path, build(), options, repeat);
    if (r.status !== 200) throw problem(r as Reply);
    if (!r.json) throw badAnswer(r);
    return camel(r.json) as T;
  }

  /** call makes a call. It ends with its answer, its time, its signal, or the client. */
  async #call(path: string, built: Built, options: CallOptions | undefined, repeat = true): Promise<Answer> {
    if (this.#closed) throw closed();
    const by = apart ? new RlnodeClient(this.#options, this) : this;
    return by.#enqueue(built.alone || path !== "check" ? by.#alone : by.#together, path, built, options, repeat);
  }

  #enqueue(lane: Lane, path: string, built: Built, options: CallOptions | undefined, repeat: boolean): Promise<Answer> {
    const signal = options?.signal;
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      if (lane.queue.length >= this.#maxQueue) throw failure("queue-full", `${this.#maxQueue} calls are waiting`);
      const abort = () => c.end(undefined, signal!.reason);
      const c: Call = {
        ms: this.#timeoutMs, ...built, path: "/v1/" + path, repeat, until: now() + 2 * this.#timeoutMs, answers: this.#nodes.answers,
        end: (answer, error) => {
          if (c.ended) return void (answer && this.#giveBack(answer));
          c.ended = true;
          signal?.removeEventListener("abort", abort);
          this.#calls.delete(c);
          if (answer) resolve(answer);
          else reject(error as Error);
        },
      }; // prettier-ignore
      signal?.addEventListener("abort", abort);
      this.#calls.add(c);
      this.#watch();
      lane.queue.push(c);
      if (lane.scheduled) return;
      lane.scheduled = true;
      tick(() => {
        lane.scheduled = false;
        this.#flush(lane);
      });
    });
  }

  /** watch ends calls that are late. The first of them is the oldest. */
  #watch(): void {
    const [oldest] = this.#calls;
    if (!oldest || this.#watching) return;
    this.#watching = alarm(oldest.until - now(), () => {
      this.#watching = undefined;
      for (const c of this.#calls) {
        if (c.until > now()) break;
        // If nodes have answered meanwhile, they are healthy: too much is in front of it.
        const full = !c.sent && c.answers !== this.#nodes.answers;
        c.end(undefined, full ? failure("queue-full", "its turn did not come in time") : failure("timeout", "no answer in time"));
      }
      this.#watch();
    }); // a request in flight keeps the process alive
  }

  #flush(lane: Lane): void {
    while (lane.inFlight < lane.maxInFlight && lane.queue.length) {
      let taken = 0;
      let size = 0;
      while (taken < lane.queue.length && taken < lane.maxBatch && size < maxBatchBytes) size += lane.queue[taken++]!.body.length;
      const batch = lane.queue.splice(0, taken).filter((c) => !c.ended);
      if (batch.length) void this.#send(lane, batch);
    }
  }

  async #send(lane: Lane, batch: Call[]): Promise<void> {
    lane.inFlight++;
    for (const c of batch) c.sent = true;
    const deadline = now() + batch[0]!.ms;
    try {
      await (batch.length > 1 ? this.#sendBatch(batch, deadline) : this.#sendOne(batch[0]!, deadline));
    } catch (e) {
      for (const c of batch) c.end(undefined, e);
    }
    lane.inFlight--;
    this.#flush(lane);
  }

  async #sendOne(c: Call, deadline: number): Promise<void> {
    for (;;) {
      try {
        const r = await this.#nodes.ask(c.path, c.body, deadline, c.repeat);
        return c.end({ ...r, json: parse(r.text) });
      } catch (e) {
        if (c.ended || c.path === "/v1/check" || !passes(e) || !c.repeat) throw e;
        if (deadline - now() <= ownerPause) throw e;
      }
      await sleep(ownerPause);
    }
  }

  async #sendBatch(batch: Call[], deadline: number): Promise<void> {
    const r = await this.#nodes.ask("/v1/check/batch", `{"checks":[${batch.map((c) => c.body).join()}]}`, deadline, true);
    if (r.status !== 200) throw problem(r);
    const { results, refusals = [] } = (parse(r.text) ?? {}) as { results?: { refusal?: unknown }[]; refusals?: unknown[] };
    if (results?.length !== batch.length) throw badAnswer(r);
    for (const one of results) if (typeof one?.refusal === "number") one.refusal = refusals[one.refusal];
    batch.forEach((c, i) => c.end({ node: r.node, json: results[i] }));
  }
}

const failure = (code: string, detail: string) => new RlnodeError(0, code, detail);
const closed = () => failure("closed", "the client is closed");
const badAnswer = (r: { node: string }) => new RlnodeError(0, "bad-answer", "not a valid answer from a node", r.node);

/** read returns the decision of an answer; its status has to agree. */
function read(r: Answer, request: CheckRequest, counts: boolean | undefined): Decision {
  const { status, json } = r;
  const { error } = (json ?? {}) as { error?: { status: number; code: string; detail: string } };
  if (!status && error) throw new RlnodeError(error.status, error.code, error.detail, r.node);
  const d = decisionOf(json);
  const refuses = status === 429 || (status === 403 && d?.denied);
  if (d && !d.allowed) d.counted = !!counts && !refuses && !d.denied;
  if (status && status !== 200 && (!refuses || !d || d.allowed)) throw problem(r as Reply);
  if (!d || (status === 200 && !d.allowed && !d.counted)) throw badAnswer(r);
  if (request.headers)
    for (const name of rateHeaders) {
      const value = r.headers!.get(name);
      if (value) d.headers[name] = value;
    }
  return d;
}
