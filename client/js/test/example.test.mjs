// The example application, as a person runs it.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { cpSync, mkdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { closing, root, scratch, start } from "./node.mjs";

test("the Express example", async (t) => {
  const dir = join(scratch, "express");
  mkdirSync(join(dir, "node_modules"), { recursive: true });
  cpSync(join(root, "examples/express/app.mjs"), join(dir, "app.mjs"));
  for (const name of ["express", "express-rate-limit"]) symlinkSync(join(root, "client/js/node_modules", name), join(dir, "node_modules", name));
  symlinkSync(join(root, "client/js"), join(dir, "node_modules/rlnode"));
  const node = closing(t, await start());
  const app = spawn(process.execPath, ["app.mjs"], { cwd: dir, env: { ...process.env, RLNODE_NODES: node.url, PORT: "0" }, stdio: ["ignore", "pipe", "inherit"] });
  t.after(() => app.kill());
  const url = await new Promise((resolve, reject) => {
    app.stdout.on("data", (text) => resolve(/http:\S+(?=\. )/.exec(String(text))[0]));
    app.on("exit", () => reject(new Error("the example ended")));
  });
  const page = await fetch(url);
  assert.match(await page.text(), /^Hello\. Rule per-ip has 99 left \(decided by owner\)/);
  assert.ok(page.headers.get("ratelimit"));
  const statuses = [];
  for (let i = 0; i < 6; i++) statuses.push((await fetch(url + "/search")).status);
  assert.deepEqual(statuses, [200, 200, 200, 200, 200, 429]);
  await node.stop();
  const alone = await fetch(url);
  assert.deepEqual([alone.status, /decided by (error|local)/.test(await alone.text())], [200, true]);
  assert.equal((await fetch(url + "/search")).status, 200); // the store limits in the process, too
});
