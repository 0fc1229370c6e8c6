# A production build of SvelteKit: a hook with a guard refuses the third request of two.
#
# language: node
# with: @sveltejs/kit@2 @sveltejs/adapter-node@5 @sveltejs/vite-plugin-svelte@5 svelte@5 vite@6 redis
# expect: 200 200 429

mkdir -p src/routes
cat > svelte.config.js <<'END'
import adapter from "@sveltejs/adapter-node";
export default { kit: { adapter: adapter() } };
END
cat > vite.config.js <<'END'
import { sveltekit } from "@sveltejs/kit/vite";
export default { plugins: [sveltekit()] };
END
node -e 'const p = require("./package.json"); p.type = "module"; fs.writeFileSync("package.json", JSON.stringify(p))'
echo '<!doctype html><html><head>%sveltekit.head%</head><body>%sveltekit.body%</body></html>' > src/app.html
echo '<p>hello</p>' > src/routes/+page.svelte
cat > src/hooks.server.js <<'END'
import { createClient } from "redis";
import { Guard } from "redis-rl/fetch";

const client = createClient({ url: process.env.REDIS_URL }).on("error", () => {});
client.connect().catch(() => {});
const policies = (request) => (new URL(request.url).pathname === "/" ? "2/m" : undefined);
const guard = new Guard(client, policies, { key: () => "all", timeoutMs: 5000, fail: "closed" });
export const handle = ({ event, resolve }) => guard.middleware(event.request, () => resolve(event));
END
npx vite build >log 2>&1 || tail -40 log >&2
export PORT=$(node lib/free-port.mjs)
HOST=127.0.0.1 node build >service.log 2>&1 &
trap 'kill $!' EXIT
node lib/ask.mjs "http://127.0.0.1:$PORT/" 3
