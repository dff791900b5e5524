// Other platforms than Node: Bun, Deno, and workerd, which Cloudflare Workers run on.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { closing, scratch, start } from "./node.mjs";

const here = fileURLToPath(new URL(".", import.meta.url));
const bin = (name) => here + "../node_modules/.bin/" + name;

for (const [name, ...command] of [
  ["Bun", "bun", "test", "--timeout", "120000"],
  ["Deno", "deno", "test", "--allow-all", "--no-check", "--quiet"],
])
  test(`${name}: the client's tests and the vectors`, () => {
    const [program, ...args] = command;
    const files = ["client", "vectors"].map((file) => `${here}${file}.test.mjs`);
    const env = { ...process.env, NO_COLOR: "1", TMPDIR: scratch }; // Bun ends without telling the tests, so they can't remove their own files
    const { status, stdout, stderr } = spawnSync(bin(program), [...args, ...files], { cwd: here, env, encoding: "utf8", timeout: 300_000 });
    const passed = /^\(pass\)| \.\.\. ok \(/;
    const told = (stdout + stderr).split("\n").filter((line) => !passed.test(line));
    assert.equal(status, 0, told.join("\n"));
  });

const worker = (url) => `
import { RlnodeClient } from "rlnode";
import { rateLimit } from "rlnode/fetch";
const limiter = new RlnodeClient({ nodes: "${url}", onError: "closed", timeoutMs: 20_000 });
const guard = rateLimit({ client: limiter, ip: (request) => request.headers.get("cf-connecting-ip") });
export default {
  async fetch(request) {
    const { pathname, search } = new URL(request.url);
    if (pathname !== "/checks") return guard(() => new Response("passed"))(request);
    const checks = Array.from({ length: 8 }, () => limiter.check({ key: search, limits: [{ limit: 5, per: "365d", algorithm: "fixed-window" }] }));
    return Response.json((await Promise.all(checks)).map((d) => d.allowed));
  },
};`;

const config = `using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [
    (name = "main", worker = (modules = [(name = "worker", esModule = embed "worker.js")], compatibilityDate = "2025-01-01")),
    (name = "internet", network = (allow = ["public", "private"])),
  ],
  sockets = [(name = "http", address = "127.0.0.1:0", http = (), service = "main")],
);`;

test("workerd: requests share a client, and some of them are given up", async (t) => {
  const node = closing(t, await start());
  const stdin = { contents: worker(node.url), resolveDir: here };
  await build({ stdin, bundle: true, format: "esm", conditions: ["import"], outfile: `${scratch}/worker.js`, logLevel: "error" });
  writeFileSync(`${scratch}/worker.capnp`, config);
  const child = spawn(bin("workerd"), ["serve", `${scratch}/worker.capnp`, "--control-fd=3"], { stdio: ["ignore", "inherit", "pipe", "pipe"] });
  t.after(() => child.kill("SIGKILL"));
  let said = "";
  child.stderr.on("data", (text) => (said += text));
  const port = await new Promise((resolve, reject) => {
    child.stdio[3].on("data", (line) => resolve(JSON.parse(line).port));
    child.on("exit", () => reject(new Error(said)));
  });
  const url = `http://127.0.0.1:${port}`;
  const ask = async (path, signal) => (await fetch(url + path, { signal })).text();
  for (let round = 0; round < 5; round++) {
    const left = Array.from({ length: 8 }, (_, i) => ask(`/checks?left-${round}-${i}`, AbortSignal.timeout(2 + i)).catch(() => {}));
    const all = await Promise.all(Array.from({ length: 8 }, (_, i) => ask(`/checks?${round}-${i}`)));
    for (const text of all) assert.equal(JSON.parse(text).filter(Boolean).length, 5, text);
    await Promise.all(left);
  }
  const page = await fetch(url, { headers: { "cf-connecting-ip": "192.0.2.1" } });
  assert.deepEqual([page.status, await page.text()], [200, "passed"], said);
  assert.ok(page.headers.get("ratelimit"));
});
