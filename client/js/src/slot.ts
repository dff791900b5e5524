import { later, now } from "./clock.js";
import type { Decision } from "./decision.js";
import { RlnodeError } from "./errors.js";

const firstPause = 25; // ms between attempts to renew; doubled with each, up to
const lastPause = 1000;

/** What a slot is renewed and released by. */
export interface Keeper {
  /** Returns until when it is held, by `now`. It ends after `ms`. */
  renew(id: string, ms: number): Promise<number>;
  /** Reports whether a node has acknowledged it. */
  release(id: string): Promise<boolean>;
  /** It is renewed no longer. */
  ended(slot: Slot): void;
}

/** What an acquire has decided, and the slot if it is allowed. */
// eslint-disable-next-line @typescript-eslint/no-unsafe-declaration-merging
export interface Slot extends Decision {}

/**
 * One of a bounded number of things that go on at once. It renews itself until `release`, whenever a third of its time is over, and
 * counts that from when the request was sent.
 */
export class Slot {
  /** Names the slot at any node; empty if nothing is held: refused, or no node decided and the options let the call pass. */
  readonly slot: string = "";
  /**
   * Ends as soon as the slot may no longer be held, with a RlnodeError of the code "slot-lost"; with `release`; and with the signal that
   * was given to the call. What the slot protects should follow it. It has ended if `allowed` is false.
   */
  readonly signal: AbortSignal;
  readonly #keeper: Keeper;
  readonly #abort = new AbortController();
  readonly #outer: AbortSignal | undefined;
  readonly #follow = (): void => this.#abort.abort(this.#outer!.reason);
  #timers: ReturnType<typeof setTimeout>[] = [];
  #over = false; // it is renewed no longer
  #gone = false; // a node has said that it is over
  #released: Promise<boolean> | undefined;

  /** @param until by `now` */
  constructor(decision: Decision, keeper: Keeper, until: number, outer: AbortSignal | undefined) {
    Object.assign(this, decision);
    this.signal = this.#abort.signal;
    this.#keeper = keeper;
    this.#outer = outer;
    if (outer?.aborted) this.#follow();
    outer?.addEventListener("abort", this.#follow);
    if (!this.allowed) this.#end(new RlnodeError(0, "refused", this.reason));
    else if (this.slot) this.#keep(until);
  }

  /**
   * Gives the slot back; it may be called several times. It repeats the call for the client's `timeoutMs`, and reports whether a node has
   * acknowledged it: otherwise the slot ends by itself.
   */
  release(): Promise<boolean> {
    this.#released ??= this.#release();
    return this.#released;
  }

  async #release(): Promise<boolean> {
    this.#end(new RlnodeError(0, "released", "the slot was released"));
    return !this.slot || this.#gone || this.#keeper.release(this.slot);
  }

  /** Ends the renewals: settling its reservation releases the slot. */
  forget(): void {
    this.#released ??= Promise.resolve(true);
    this.#end(new RlnodeError(0, "released", "the reservation was settled"));
  }

  #keep(until: number): void {
    const left = until - now();
    this.#timers = [later(left, () => this.#lose("it was not renewed in time")), later(left / 3, () => void this.#renew(until, 0))];
  }

  async #renew(until: number, pause: number): Promise<void> {
    try {
      const next = await this.#keeper.renew(this.slot, until - now());
      if (this.#over) return;
      for (const timer of this.#timers) clearTimeout(timer);
      this.#keep(next);
    } catch (e) {
      if (this.#over) return;
      this.#gone = (e as RlnodeError).code === "unknown-slot";
      if (this.#gone) return this.#lose((e as Error).message);
      const rest = Math.min(Math.max(2 * pause, firstPause), lastPause);
      this.#timers[1] = later(rest, () => void this.#renew(until, rest));
    }
  }

  #lose(why: string): void {
    this.#end(new RlnodeError(0, "slot-lost", "the slot is lost: " + why));
  }

  #end(why: RlnodeError): void {
    if (this.#over) return;
    this.#over = true;
    for (const timer of this.#timers) clearTimeout(timer);
    this.#outer?.removeEventListener("abort", this.#follow);
    this.#abort.abort(why);
    this.#keeper.ended(this);
  }
}

// Platforms that lack the symbol have no `await using`, either.
const dispose: symbol = Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose");
Object.defineProperty(Slot.prototype, dispose, {
  value(this: Slot): Promise<void> {
    return this.release().then(() => undefined);
  },
});

export interface Slot extends AsyncDisposable {}

/** What withSlot throws if there is no slot. */
export class RefusedError extends RlnodeError {
  override readonly name = "RefusedError";
  constructor(readonly decision: Decision) {
    super(decision.denied ? 403 : 429, decision.code || "refused", decision.reason, decision.node, decision.error);
  }
}

/** during releases a slot when a response has been read to its end, given up, or has no body. The one to a HEAD is never read. */
export function during(response: Response, slot: Slot, method: string): Response {
  const { body } = response;
  if (!body || method === "HEAD") {
    void slot.release();
    return response;
  }
  const reader = body.getReader();
  const watched = new ReadableStream<Uint8Array>({
    async pull(controller) {
      try {
        const { done, value } = await reader.read();
        if (!done) return controller.enqueue(value);
        controller.close();
      } catch (e) {
        controller.error(e);
      }
      void slot.release();
    },
    async cancel(reason) {
      void slot.release();
      await reader.cancel(reason);
    },
  });
  return new Response(watched, response);
}
