# A production build of Nuxt starts, and refuses the third request of two.
#
# language: node
# with: nuxt@3.12 redis
# with: nuxt redis
# expect: 200 200 429

mkdir -p server/api app
echo 'export default defineNuxtConfig({ telemetry: false })' > nuxt.config.ts
echo '<template><p>hello</p></template>' | tee app.vue > app/app.vue
cat > server/api/found.ts <<'END'
import { createClient } from "redis";
import { Guard } from "redis-rl/fetch";

const client = createClient({ url: process.env.REDIS_URL }).on("error", () => {});
client.connect().catch(() => {});
const guard = new Guard(client, "2/m", { key: () => "nobody" });
export default defineEventHandler((event) => guard.middleware(toWebRequest(event), () => new Response("found")));
END
NUXT_TELEMETRY_DISABLED=1 npx nuxt build >log 2>&1 || tail -30 log >&2
mv .output built && rm -r node_modules
export PORT=$(node lib/free-port.mjs)
HOST=127.0.0.1 node built/server/index.mjs >service.log 2>&1 &
trap 'kill $!' EXIT
node lib/ask.mjs "http://127.0.0.1:$PORT/api/found" 3
