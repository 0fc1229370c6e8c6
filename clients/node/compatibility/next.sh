# A production build of Next.js: routes share a limiter in memory by globalThis, and one on Redis; both refuse the third request of two.
#
# language: node
# with: next@14 react@18 react-dom@18 redis
# with: next react react-dom redis
# with: next react react-dom ioredis
# expect: 200 200 429
# expect: 200 200 429

mkdir -p app/memory app/other app/redis
export NEXT_TELEMETRY_DISABLED=1
echo 'export default ({ children }) => <html><body>{children}</body></html>;' > app/layout.jsx
echo 'export default () => <p>up</p>;' > app/page.jsx
route() {
  cat > "app/$1/route.js" <<END
import { MemoryLimiter } from "redis-rl";
import { Guard } from "redis-rl/fetch";
$2
const guard = new Guard(client, "2/m", { key: () => "all", timeoutMs: 5000, fail: "closed" });
export const dynamic = "force-dynamic";
export const GET = (request) => guard.middleware(request, () => Response.json({ found: [] }));
END
}
route memory 'const client = (globalThis.limiter ??= new MemoryLimiter());'
route other 'const client = (globalThis.limiter ??= new MemoryLimiter());'
if [[ -d node_modules/redis ]]; then
  route redis 'import { createClient } from "redis";
const client = createClient({ url: process.env.REDIS_URL }).on("error", () => {});
client.connect().catch(() => {});'
else
  route redis 'import Redis from "ioredis";
const client = new Redis(process.env.REDIS_URL, { lazyConnect: true });'
fi
npx next build >log 2>&1 || tail -40 log >&2
export PORT=$(node lib/free-port.mjs)
next start -H 127.0.0.1 -p "$PORT" >service.log 2>&1 &
trap 'kill $!' EXIT
memory=$(node lib/ask.mjs "http://127.0.0.1:$PORT/memory" 2)
echo "$memory" "$(node lib/ask.mjs "http://127.0.0.1:$PORT/other" 1)"
node lib/ask.mjs "http://127.0.0.1:$PORT/redis" 3
