# A production build of Astro: a middleware with a guard refuses the third request of two.
#
# language: node
# with: astro@4 @astrojs/node@8 redis
# with: astro@5 @astrojs/node@9 redis
# expect: 200 200 429

mkdir -p src/pages
cat > astro.config.mjs <<'END'
import node from "@astrojs/node";
export default { output: "server", adapter: node({ mode: "standalone" }) };
END
echo '<p>hello</p>' > src/pages/index.astro
cat > src/middleware.js <<'END'
import { createClient } from "redis";
import { clientAddress } from "redis-rl";
import { Guard } from "redis-rl/fetch";

const client = createClient({ url: process.env.REDIS_URL }).on("error", () => {});
client.connect().catch(() => {});
const policies = (request) => (new URL(request.url).pathname === "/" ? "2/m" : undefined);
const guard = new Guard(client, policies, { key: () => clientAddress("192.0.2.1"), timeoutMs: 5000, fail: "closed" });
export const onRequest = ({ request }, next) => guard.middleware(request, next);
END
ASTRO_TELEMETRY_DISABLED=1 npx astro build >log 2>&1 || tail -40 log >&2
export PORT=$(node lib/free-port.mjs)
HOST=127.0.0.1 node dist/server/entry.mjs >service.log 2>&1 &
trap 'kill $!' EXIT
node lib/ask.mjs "http://127.0.0.1:$PORT/" 3
