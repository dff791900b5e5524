// Compiles src to dist/esm and dist/cjs, each with its types.
import { execFileSync } from "node:child_process";
import { rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

process.chdir(fileURLToPath(new URL(".", import.meta.url)));
rmSync("dist", { recursive: true, force: true });
const tsc = fileURLToPath(new URL("node_modules/.bin/tsc", import.meta.url));
for (const [config, type] of [["tsconfig.json", "module"], ["tsconfig.cjs.json", "commonjs"]]) {
  execFileSync(tsc, ["-p", config], { stdio: "inherit" });
  writeFileSync(`dist/${type === "module" ? "esm" : "cjs"}/package.json`, JSON.stringify({ type }) + "\n");
}
