/** now is this process's own clock, in ms, by which all spans are measured: no step of the wall clock moves it. */
export const now = (): number => performance.now();

type Timer = ReturnType<typeof setTimeout>;

/** after runs f, but no later than a timer can: one that is set for longer ends at once. */
const after = (ms: number, f: () => void): Timer => setTimeout(f, Math.max(0, Math.min(ms, 2 ** 31 - 1)));

/** later runs f without keeping the process alive. */
export function later(ms: number, f: () => void): Timer {
  const timer = after(ms, f);
  (timer as { unref?: () => void }).unref?.();
  return timer;
}

const grace = 100; // ms

/**
 * alarm runs f in `ms` without keeping the process alive, and returns what cancels it. If the process is held up at that time, f
 * waits a little more: what has arrived meanwhile is read first.
 */
export function alarm(ms: number, f: () => void): () => void {
  const due = now() + ms;
  let timer = later(ms, () => {
    if (now() < due + grace) f();
    else timer = later(grace, f);
  });
  return () => clearTimeout(timer);
}

/** sleep waits, and rejects with the signal's reason if that ends first. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      if (signal?.aborted) reject(signal.reason as Error);
      else resolve();
    };
    const timer = after(ms, end);
    signal?.addEventListener("abort", end);
    if (signal?.aborted) end();
  });
}
