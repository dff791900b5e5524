// Memory over many checks: node test/memory.mjs NODE-URL [CHECKS] (a million unless said). It prints the heap as it goes.
import { RlnodeClient } from "rlnode";

/** heaps makes `total` checks, by single ones and in bursts, and returns the heap's size in MB after each tenth. */
export async function heaps(nodes, total, log = () => {}) {
  const client = new RlnodeClient({ nodes, timeoutMs: 30_000 });
  const sizes = [];
  let failed = 0;
  const began = Date.now();
  const one = async (i) => {
    const d = await client.check({ namespace: "memory", key: "k" + (i % 5000), limits: [{ limit: 1_000_000, per: "1h" }], headers: i % 20 === 0 });
    if (d.error || !d.allowed) failed++;
  };
  for (let i = 0; i < total; ) {
    const burst = Array.from({ length: Math.min(1000, total - i) }, () => one(i++));
    await Promise.all(burst);
    if (i % (total / 10) < 1000) {
      globalThis.gc?.();
      sizes.push(process.memoryUsage().heapUsed / 1e6);
      log(`${i} checks, ${Math.round((Date.now() - began) / 1000)} s: heap ${sizes.at(-1).toFixed(1)} MB, rss ${(process.memoryUsage().rss / 1e6).toFixed(0)} MB`);
    }
  }
  client.close();
  return { sizes, failed };
}

if (import.meta.filename === process.argv[1] || import.meta.url === "file://" + process.argv[1]) {
  const { failed } = await heaps([process.argv[2]], Number(process.argv[3] ?? 1_000_000), console.log);
  console.log(`${failed} failed`);
  process.exit(failed ? 1 : 0);
}
