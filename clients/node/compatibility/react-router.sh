# A production build of React Router: a loader with a guard refuses the third request of two.
#
# language: node
# with: react-router@7.9.0 @react-router/dev@7.9.0 @react-router/node@7.9.0 @react-router/serve@7.9.0 react@19 react-dom@19 vite@6 isbot@5 redis
# expect: 200 200 429

mkdir -p app/routes
node -e 'const p = require("./package.json"); p.type = "module"; fs.writeFileSync("package.json", JSON.stringify(p))'
cat > vite.config.js <<'END'
import { reactRouter } from "@react-router/dev/vite";
export default { plugins: [reactRouter()] };
END
cat > app/root.jsx <<'END'
import { Outlet, Scripts } from "react-router";
export default () => <html><body><Outlet /><Scripts /></body></html>;
END
cat > app/routes.js <<'END'
import { route } from "@react-router/dev/routes";
export default [route("found", "routes/found.js"), route("up", "routes/up.js")];
END
echo 'export const loader = () => new Response("up");' > app/routes/up.js
cat > app/guard.server.js <<'END'
import { createClient } from "redis";
import { Guard } from "redis-rl/fetch";

const client = createClient({ url: process.env.REDIS_URL }).on("error", () => {});
client.connect().catch(() => {});
export const guard = new Guard(client, "2/m", { key: () => "all", timeoutMs: 5000, fail: "closed" });
END
cat > app/routes/found.js <<'END'
import { guard } from "../guard.server.js";
export const loader = ({ request }) => guard.middleware(request, () => Response.json({ found: [] }));
END
npx react-router build >log 2>&1 || tail -40 log >&2
export PORT=$(node lib/free-port.mjs)
HOST=127.0.0.1 react-router-serve ./build/server/index.js >service.log 2>&1 &
trap 'kill $!' EXIT
node lib/ask.mjs "http://127.0.0.1:$PORT/found" 3
