# A production build of Nitro starts, and refuses the third request of two.
#
# language: node
# with: nitropack@2.9 redis
# with: nitropack redis
# with: nitropack ioredis
# ci
# expect: 200 200 429

mkdir -p routes
cat > routes/index.ts <<'END'
import { Guard } from "redis-rl/fetch";
import * as library from "CLIENT";

const client =
  library.createClient?.({ url: process.env.REDIS_URL }).on("error", () => {}) ?? new library.Redis(process.env.REDIS_URL);
client.connect().catch(() => {});
const guard = new Guard(client, "2/m", { key: (request: Request) => request.headers.get("x-account") ?? "nobody" });
export default eventHandler((event) => guard.middleware(toWebRequest(event), () => new Response("found")));
END
[[ -d node_modules/redis ]] && library=redis || library=ioredis
sed -i "s/CLIENT/$library/" routes/index.ts
mkdir routes/up && echo 'export default eventHandler(() => "up")' > routes/up/index.ts
npx nitropack build >log 2>&1 || cat log >&2
# The build needs nothing beside it.
mv .output built && rm -r node_modules
export PORT=$(node lib/free-port.mjs)
HOST=127.0.0.1 node built/server/index.mjs >service.log 2>&1 &
trap 'kill $!' EXIT
node lib/ask.mjs "http://127.0.0.1:$PORT" 3
