# A program in TypeScript compiles, strictly and with the package's own types checked: every client, as ES modules and as CommonJS.
#
# language: node
# with: typescript@5.4 @types/node@20 @types/express@4 express@4 redis@5 ioredis@5
# with: typescript @types/node @types/express express redis ioredis
# expect: nodenext: no errors
# expect: bundler: no errors
# expect: node16: no errors

cat > app.ts <<'END'
import express from "express";
import { Cluster, Redis } from "ioredis";
import { createClient, createCluster } from "redis";
import { type Client, MemoryLimiter, rateLimiter, rl } from "redis-rl";
import { type Decision, Guard } from "redis-rl/express";

const clients: Client[] = [
  new Redis(),
  new Cluster([]),
  createClient(),
  createClient({ modules: { rl } }),
  createCluster({ rootNodes: [] }),
  new MemoryLimiter(),
];
for (const client of clients) void rateLimiter(client).log("key", "5/m");
const onLimited = (request: express.Request, { policies }: Decision): undefined =>
  console.log(request.path, policies.requests?.remaining) as undefined;
const guard = new Guard<express.Request>(clients[0]!, "5/m", { key: (request) => request.get("account"), onLimited });
express().use(guard.middleware).get("/", guard.limit("2/m"));
END
for resolution in nodenext bundler node16; do
  [[ $resolution = bundler ]] && module=esnext || module=$resolution
  echo "$resolution: $(tsc --noEmit --strict --esModuleInterop --target es2022 --lib es2023,dom,esnext.disposable --types node \
    --module $module --moduleResolution $resolution --skipLibCheck app.ts | grep . || echo "no errors")"
done
# The package's own types, by the settings of somebody who checks those of libraries.
tsc --noEmit --strict --esModuleInterop --target es2022 --lib es2023,dom,esnext.disposable --types node --module nodenext app.ts |
  grep redis-rl
true
