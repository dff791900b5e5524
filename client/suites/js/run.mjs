#!/usr/bin/env node
// run.mjs LIBRARY CHECKOUT: runs its tests with rlnode's store in place of the one that it keeps in memory. SUITE_NODE is a node.
// The checkout has its dependencies installed. It stays as it is: the tests run in a copy.
import { spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, realpathSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const [library, checkout] = process.argv.slice(2);

/** For each library: the file of its own store, which the one of the same name here replaces, and how its tests are run. */
const suites = {
  "express-rate-limit": { store: "source/memory-store.ts", run: express },
  "hono-rate-limiter": { store: "src/stores/memory.ts", run: vitest },
  "fastify-rate-limit": { store: "store/LocalStore.js", run: () => node("test", (name) => !/redis|valkey|local-store-close/.test(name)) },
  "nestjs-throttler": { store: "src/throttler.service.ts", run: () => jest(["--config", "test/jest-e2e.json", "--forceExit"]) },
  "rate-limiter-flexible": { store: "lib/RateLimiterMemory.js", run: mocha },
};
const suite = suites[library];

const copy = mkdtempSync(join(tmpdir(), "rlnode-suite-"));
process.on("exit", () => rmSync(copy, { recursive: true, force: true }));
cpSync(checkout, copy, { recursive: true, filter: (from) => !/\/(node_modules|\.git)$/.test(from) });
link(join(checkout, "node_modules"), join(copy, "node_modules"));
install("rlnode", join(here, "../../js"), ["package.json", "dist"]);
if (library === "rate-limiter-flexible") symlinkSync(copy, join(copy, "node_modules", library)); // what the store extends
const replacement = readdirSync(here).find((name) => name.startsWith(library + "."));
cpSync(join(here, replacement), join(copy, suite.store));
cpSync(join(here, "client.cjs"), join(copy, "node_modules/rlnode/suite.cjs"));

/** link links what is in a folder of packages, so that more can be put beside it. */
function link(from, to) {
  mkdirSync(to);
  for (const name of readdirSync(from)) {
    if (name.startsWith("@") && existsSync(join(from, name))) link(join(from, name), join(to, name));
    else symlinkSync(realpathSync(join(from, name)), join(to, name));
  }
}

function install(name, from, files) {
  const to = join(copy, "node_modules", name);
  rmSync(to, { recursive: true, force: true });
  mkdirSync(to);
  for (const file of files) cpSync(join(from, file), join(to, file), { recursive: true });
  const manifest = JSON.parse(readFileSync(join(to, "package.json"), "utf8"));
  manifest.exports["./suite"] = "./suite.cjs";
  writeFileSync(join(to, "package.json"), JSON.stringify(manifest));
}

function start(command, env = {}) {
  const { stdout, stderr } = spawnSync(command[0], command.slice(1), { cwd: copy, env: { ...process.env, ...env }, encoding: "utf8", maxBuffer: 1 << 28, timeout: 240_000, killSignal: "SIGKILL" });
  return stdout + stderr;
}

const bin = (name) => join(copy, "node_modules/.bin", name);

/** Each of these returns [name, failure] of each test; the failure is empty if it passed. */
function jest(options, env) {
  const output = start([bin("jest"), "--json", "--outputFile=results.json", "--runInBand", ...options], env);
  return jestResults(output);
}

/** express does without the types of the library's own configuration, since the store has others. */
function express() {
  const config = JSON.parse(readFileSync(join(copy, "jest.config.json"), "utf8"));
  const tsconfig = { target: "ES2022", module: "CommonJS", moduleResolution: "node", esModuleInterop: true, isolatedModules: true };
  config.transform = { "^.+\\.ts$": ["ts-jest", { diagnostics: false, tsconfig }] };
  writeFileSync(join(copy, "jest.config.json"), JSON.stringify(config));
  writeFileSync(join(copy, "tsconfig.json"), JSON.stringify({ compilerOptions: tsconfig }));
  return jest(["--coverage=false"]);
}

function vitest() {
  writeFileSync(join(copy, "vitest.config.ts"), "export default { test: { exclude: ['**/redis/**', '**/node_modules/**'] } };\n");
  return jestResults(start([bin("vitest"), "run", "--reporter=json", "--outputFile=results.json"]));
}

function jestResults(output) {
  if (!existsSync(join(copy, "results.json"))) throw new Error(output);
  const { testResults } = JSON.parse(readFileSync(join(copy, "results.json"), "utf8"));
  return testResults.flatMap((file) => {
    if (!file.assertionResults.length) return [[file.name, file.message]];
    return file.assertionResults.filter((one) => one.status !== "pending" && one.status !== "skipped" && one.status !== "todo").map((one) => [one.fullName, one.status === "passed" ? "" : one.failureMessages.join("\n")]);
  });
}

function node(folder, wanted) {
  const files = readdirSync(join(copy, folder), { recursive: true }).filter((name) => name.endsWith(".test.js") && wanted(name));
  const reporter = join(copy, "reporter.mjs");
  writeFileSync(reporter, `export default async function* (events) {
  for await (const { type, data } of events)
    if (type === "test:pass" || type === "test:fail") yield JSON.stringify([data.name, type === "test:pass" ? "" : String(data.details.error.cause?.stack ?? data.details.error)]) + "\\n";
}`);
  const results = join(copy, "results.jsonl");
  start([process.execPath, "--test", "--test-force-exit", "--test-concurrency=1", "--test-timeout=60000", "--test-reporter=" + reporter, "--test-reporter-destination=" + results, ...files.map((name) => join(folder, name))]);
  const lines = readFileSync(results, "utf8").trim().split("\n").map((line) => JSON.parse(line)); // prettier-ignore
  return lines.filter(([name]) => !name.endsWith(".test.js"));
}

function mocha() {
  const files = ["RateLimiterMemory", "BurstyRateLimiter", "RateLimiterQueue", "RateLimiterUnion", "RLWrapperBlackAndWhite", "RLWrapperTimeouts", "RateLimiterInsuredAbstract", "ExpressBruteFlexible"];
  start([bin("mocha"), "--reporter", "json", "--reporter-option", "output=results.json", "--exit", ...files.map((name) => `test/${name}.test.js`)]);
  const { tests } = JSON.parse(readFileSync(join(copy, "results.json"), "utf8"));
  return tests.map(({ fullTitle, err }) => [fullTitle, err.stack ?? err.message ?? ""]);
}

/** The tests that are different on purpose: [library, the beginning of their names, why]. */
const different = readFileSync(join(here, "different.txt"), "utf8").split("\n").filter(Boolean).map((line) => line.split(" | ")).filter(([name]) => name === library); // prettier-ignore
const listed = (name) => different.find(([, prefix]) => name.startsWith(prefix));

const results = suite.run();
const failed = results.filter(([name, failure]) => failure && !listed(name));
const passed = results.filter(([, failure]) => !failure);
for (const [name, failure] of failed) console.log(`FAILED ${name}\n${failure.split("\n").slice(0, process.env.SUITE_LINES ?? 4).join("\n")}\n`);
const agreeing = different.filter(([, prefix, why]) => !why.startsWith("sometimes") && !results.some(([name, failure]) => failure && name.startsWith(prefix)));
for (const [, prefix] of agreeing) console.log(`LISTED as different, but it passes: ${prefix}`);
console.log(`${library}: ${passed.length} passed, ${failed.length} failed, ${results.length - passed.length - failed.length} are different on purpose`);
process.exit(failed.length || agreeing.length || !passed.length ? 1 : 0);
