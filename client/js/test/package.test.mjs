// What npm publishes: its size, its files, and that both kinds of modules find everything with its types.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { publint } from "publint";
import { scratch } from "./node.mjs";

const root = fileURLToPath(new URL("..", import.meta.url));
const { exports, dependencies } = JSON.parse(readFileSync(root + "package.json", "utf8"));
const names = Object.keys(exports).filter((name) => name !== "./package.json");
const run = (command, ...args) => execFileSync(command, args, { cwd: root, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });

test("no import has more than 28 kB minified, and none has dependencies", async () => {
  assert.equal(dependencies, undefined);
  for (const name of names) {
    const { outputFiles } = await build({
      entryPoints: [`${root}dist/esm/${name === "." ? "index" : name.slice(2)}.js`], external: ["rate-limiter-flexible"],
      bundle: true, minify: true, format: "esm", platform: "neutral", write: false, charset: "utf8",
    }); // prettier-ignore
    const bytes = outputFiles[0].contents.length;
    assert.ok(bytes <= 28_000, `${name}: ${bytes} bytes`);
  }
});

test("both kinds of modules find everything", async () => {
  const require = createRequire(import.meta.url);
  for (const name of names) {
    const path = "rlnode" + name.slice(1);
    assert.deepEqual(Object.keys(await import(path)).filter((k) => k !== "default").sort(), Object.keys(require(path)).sort(), path);
  }
});

test("attw finds nothing in what is packed, and it works in an empty project", () => {
  const [{ filename, files }] = JSON.parse(run("npm", "pack", "--json", "--ignore-scripts", "--pack-destination", scratch));
  assert.deepEqual([...new Set(files.map((f) => f.path.split("/")[0]))].sort(), ["README.md", "dist", "package.json"]);
  run("npx", "attw", `${scratch}/${filename}`, "--profile", "node16");
  const empty = `${scratch}/empty`;
  mkdirSync(`${empty}/node_modules/rlnode`, { recursive: true });
  run("tar", "xzf", `${scratch}/${filename}`, "-C", `${empty}/node_modules/rlnode`, "--strip-components=1");
  const paths = names.filter((name) => name !== "./rate-limiter-flexible").map((name) => "rlnode" + name.slice(1)); // it extends that library
  for (const [type, load] of [["module", "await import"], ["commonjs", "require"]]) {
    const text = paths.map((path) => `if (!Object.keys(${load}("${path}")).length) throw "${path}";`).join("\n");
    execFileSync(process.execPath, ["--input-type=" + type, "-e", text], { cwd: empty });
  }
});

test("publint finds nothing", async () => {
  const { messages } = await publint({ pkgDir: root, strict: true, pack: false });
  assert.deepEqual(messages.filter((m) => m.type !== "suggestion"), []);
});
