// The example application, as a person runs it, and the README's lines, as typed.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { cpSync, mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { closing, root, scratch, start } from "./node.mjs";

let runs = 0;

/** run runs the example with nodes. It returns its address, and what it has written. */
async function run(t, nodes) {
  const dir = join(scratch, "express-" + ++runs);
  mkdirSync(join(dir, "node_modules"), { recursive: true });
  cpSync(join(root, "examples/express/app.mjs"), join(dir, "app.mjs"));
  for (const name of ["express", "express-rate-limit"]) symlinkSync(join(root, "client/js/node_modules", name), join(dir, "node_modules", name));
  symlinkSync(join(root, "client/js"), join(dir, "node_modules/rlnode"));
  const app = spawn(process.execPath, ["app.mjs"], { cwd: dir, env: { ...process.env, RLNODE_NODES: nodes, PORT: "0" }, stdio: "pipe" });
  t.after(() => app.kill());
  let errors = "";
  app.stderr.on("data", (text) => (errors += text));
  const url = await new Promise((resolve, reject) => {
    app.stdout.on("data", (text) => resolve(/http:\S+(?=\. )/.exec(String(text))[0]));
    app.on("exit", () => reject(new Error("the example ended:\n" + errors)));
  });
  return { url, log: () => errors };
}

test("the Express example", async (t) => {
  const node = closing(t, await start());
  const { url } = await run(t, node.url);
  const page = await fetch(url);
  assert.match(await page.text(), /^Hello\. Rule per-ip has 99 left \(decided by owner\)/);
  assert.ok(page.headers.get("ratelimit"));
  const statuses = [];
  for (let i = 0; i < 6; i++) statuses.push((await fetch(url + "/search")).status);
  assert.deepEqual(statuses, [200, 200, 200, 200, 200, 429]);
  await node.stop();
  await limitsByItself(url);
});

/** limitsByItself: without a node the example has the limits that its comments name. */
async function limitsByItself(url) {
  const searches = [];
  for (let i = 0; i < 6; i++) searches.push((await fetch(url + "/search")).status);
  assert.deepEqual(searches, [200, 200, 200, 200, 200, 429]);
  const pages = [];
  for (let i = 0; i < 130; i++) pages.push((await fetch(url)).status);
  assert.equal(pages.filter((status) => status === 200).length, 94); // 100, of which the searches took six
  assert.ok(pages.slice(94).every((status) => status === 429));
}

test("the Express example without a node", async (t) => {
  const { url, log } = await run(t, "http://127.255.1.2:4444");
  assert.match(await (await fetch(url)).text(), /decided by local/);
  await new Promise((resolve) => setTimeout(resolve, 0));
  assert.match(log(), /rlnode: http:\/\/127\.255\.1\.2:4444 is passed over/);
});

test("the README's lines", async (t) => {
  const rules = `version: 1
rules:
  - {name: login, key: [ip], limits: [{limit: 5, per: 1m}]}
  - {name: model, key: [user], limits: [{limit: 90000, per: 1m, unit: tokens}]}
  - {name: render, match: {holds: slots}, key: [user], limits: [{limit: 1, ttl: 30s, algorithm: concurrency}]}
`;
  const node = closing(t, await start({ rules }));
  const cwd = join(root, "client/js");
  const [first, calls, slots] = [...readFileSync(join(cwd, "README.md"), "utf8").matchAll(/```js\n(.*?)```/gs)].map((found) => found[1]);
  const render = `const render = async ({ aborted }) => console.log("aborted", aborted);`;
  const text = first.replace("http://127.0.0.1:8080", node.url).replace("limiter.close();", (end) => calls + render + slots + end);
  const out = execFileSync(process.execPath, ["--input-type=module", "-e", text], { cwd, encoding: "utf8", timeout: 60_000 });
  assert.deepEqual([out.match(/go on/g)?.length, out.match(/retry in/g)?.length, out.match(/aborted false/g)?.length], [5, 2, 2], out);
});
