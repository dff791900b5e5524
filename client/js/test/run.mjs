// Runs all tests, with one program of the node.
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { program } from "./node.mjs";

const here = fileURLToPath(new URL(".", import.meta.url));
const files = process.argv.slice(2);
if (files.length === 0) files.push(...readdirSync(here).filter((name) => name.endsWith(".test.mjs")).map((name) => here + name));
const { status } = spawnSync(process.execPath, ["--test", "--test-concurrency=2", "--test-reporter=spec", ...files], {
  stdio: "inherit",
  env: { ...process.env, RLNODE: program() },
});
process.exit(status ?? 1);
