# A program in one file, as a bundler makes it, refuses the third request of two, without the package beside it.
#
# language: node
# with: esbuild express redis
# with: webpack webpack-cli express redis
# with: rollup @rollup/plugin-node-resolve @rollup/plugin-commonjs @rollup/plugin-json express redis
# with: tsup typescript express redis
# with: @vercel/ncc express redis
# with: vite express redis
# with: @rspack/core @rspack/cli express redis
# expect: 200 200 429
# expect: 200 200 429

cat > app.mjs <<'END'
import express from "express";
import { createClient } from "redis";
import { MemoryLimiter } from "redis-rl";
import { Guard } from "redis-rl/express";

const client = createClient({ url: process.env.REDIS_URL }).on("error", () => {});
client.connect().catch(() => {});
const options = { timeoutMs: 5000, fail: "closed" };
const guards = { "/redis": new Guard(client, "2/m", options), "/memory": new Guard(new MemoryLimiter(), "2/m", options) };
const app = express();
for (const path in guards) app.get(path, guards[path].middleware, (_, response) => response.send("found"));
const server = app.listen(0, async () => {
  for (const path in guards) {
    const statuses = [];
    for (let i = 0; i < 3; i++) statuses.push((await fetch(`http://localhost:${server.address().port}${path}`)).status);
    console.log(...statuses);
  }
  process.exit();
});
END
has() { [[ -d node_modules/$1 ]]; }
if has tsup; then
  echo 'export default { entry: ["app.mjs"], format: "cjs", outDir: "out", noExternal: [/.*/] };' > tsup.config.mjs
  npx tsup >&2
elif has vite; then npx vite build --ssr app.mjs --outDir out --logLevel error >&2
elif has @rspack/cli; then 
  output='{ path: import.meta.dirname + "/out", filename: "app.cjs" }'
  echo "export default { entry: './app.mjs', target: 'node', mode: 'production', output: $output };" > rspack.config.mjs
  npx rspack build >&2
elif has webpack; then npx webpack ./app.mjs --mode production --target node -o out --output-filename app.cjs >&2
elif has rollup; then npx rollup app.mjs -p node-resolve -p commonjs -p json -f cjs -o out/app.cjs >&2
elif has @vercel/ncc; then npx ncc build app.mjs -o out >&2
else npx esbuild app.mjs --bundle --platform=node --outfile=out/app.cjs --log-level=error
fi
# The server build of Vite leaves packages where they are.
has vite || rm -r node_modules
node "$(ls out/app.* out/index.* 2>/dev/null | head -1)"
