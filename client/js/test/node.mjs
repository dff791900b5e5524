// Real nodes for tests. RLNODE names the program; else it is built once.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const root = fileURLToPath(new URL("../../../", import.meta.url));
export const scratch = mkdtempSync(join(tmpdir(), "rlnode-js-"));
const running = new Set();

process.on("exit", () => {
  for (const child of running) child.kill("SIGKILL");
  rmSync(scratch, { recursive: true, force: true });
});

/** program returns the path of the node's program. */
export function program() {
  const path = process.env.RLNODE ?? join(scratch, "rlnode");
  if (existsSync(path)) return path;
  if (process.env.RLNODE) throw new Error(`RLNODE is to be the node's program, but there is no ${path}.`);
  const { error, status } = spawnSync("go", ["build", "-o", path, "./cmd/rlnode"], { cwd: root, stdio: "inherit" });
  if (error || status) throw new Error("The tests need a node: install Go, so that it can be built here, or set RLNODE to its program.");
  return (process.env.RLNODE = path);
}

let count = 0;

/** start runs a node and returns once it is ready. */
export async function start({ rules, flags = [] } = {}) {
  const dir = join(scratch, `node-${process.pid}-${++count}`);
  const args = ["serve", "--data-dir", dir, ...flags];
  if (!flags.includes("--bind")) args.push("--http-port", "0", "--admin-port", "0");
  if (rules) {
    writeFileSync(dir + ".yaml", rules);
    args.push("--rules", dir + ".yaml");
  }
  const child = spawn(program(), args, { env: { PATH: process.env.PATH }, stdio: ["ignore", "pipe", "pipe"] });
  running.add(child);
  let log = "";
  const ended = new Promise((resolve) => child.once("exit", () => (running.delete(child), resolve())));
  const ready = await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("the node is not ready:\n" + log)), 30_000);
    const read = (chunk) => {
      log += chunk;
      const found = /msg=ready .*data=(\S+) admin=(\S+)/.exec(log);
      if (found) (clearTimeout(timer), resolve(found));
    };
    child.stdout.on("data", read);
    child.stderr.on("data", read);
    void ended.then(() => reject(new Error("the node ended:\n" + log)));
  });
  return {
    url: ready[1],
    admin: ready[2],
    log: () => log,
    /** stop ends the node with a signal, and waits for its end. */
    stop: (signal = "SIGKILL") => (child.kill(signal), ended),
    signal: (signal) => child.kill(signal),
  };
}

/** cluster runs nodes that are one cluster, on addresses of their own. */
export async function cluster(n, rules) {
  const net = `127.${10 + Math.floor(Math.random() * 240)}.${Math.floor(Math.random() * 250)}`;
  const addresses = Array.from({ length: n }, (_, i) => `${net}.${i + 1}`);
  return Promise.all(
    addresses.map((a, i) =>
      start({ rules, flags: ["--name", `n${i + 1}`, "--bind", a, "--bootstrap-expect", String(n), "--join", addresses.filter((b) => b !== a).join()] }),
    ),
  );
}

/** eventually waits until f returns something true, and returns it. */
export async function eventually(what, f, ms = 20_000) {
  for (const end = Date.now() + ms; ; ) {
    const value = await f();
    if (value) return value;
    if (Date.now() > end) throw new Error("not in time: " + what);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** closing registers something to be closed when the test ends. */
export function closing(t, ...things) {
  t.after(async () => {
    for (const one of things) await (one.stop ?? one.close).call(one);
  });
  return things[0];
}
