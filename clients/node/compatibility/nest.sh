# NestJS on Express and on Fastify: the recipe's limit refuses the third request of two.
#
# language: node
# with: @nestjs/common@10 @nestjs/core@10 @nestjs/platform-express@10 @nestjs/platform-fastify@10 reflect-metadata rxjs tsx redis
# with: @nestjs/common @nestjs/core @nestjs/platform-express @nestjs/platform-fastify reflect-metadata rxjs tsx redis
# expect: express 200 200 429
# expect: fastify 200 200 429

echo '{ "compilerOptions": { "experimentalDecorators": true } }' > tsconfig.json
cat > app.mts <<'END'
import "reflect-metadata";
import { Controller, type ExecutionContext, Get, HttpException, Module, UseGuards } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import { FastifyAdapter } from "@nestjs/platform-fastify";
import { Guard as ExpressGuard } from "redis-rl/express";
import { Guard as FastifyGuard } from "redis-rl/fastify";
import { clientOf, statuses } from "./lib/world.mjs";

const options = { timeoutMs: 5000, fail: "closed" } as const;
for (const name of ["express", "fastify"]) {
  const Guard = name === "express" ? ExpressGuard : FastifyGuard;
  const guard = new Guard(await clientOf(), "100/m", { ...options, prefix: `${name}:` });
  const limit = (policies: string) => ({
    async canActivate(context: ExecutionContext) {
      const http = context.switchToHttp();
      const { allowed, status, fields, body } = await guard.take(http.getRequest(), policies);
      for (const name in fields) http.getResponse().header(name, fields[name]);
      if (!allowed) throw new HttpException(body ?? "", status);
      return true;
    },
  });

  @Controller()
  class Routes {
    @Get("search")
    @UseGuards(limit("2/m"))
    search() {
      return "found";
    }
  }

  @Module({ controllers: [Routes] })
  class App {}
  const app =
    name === "express"
      ? await NestFactory.create(App, { logger: false })
      : await NestFactory.create(App, new FastifyAdapter(), { logger: false });
  if (name === "express") app.use(guard.middleware);
  else await (app as never as { register(plugin: unknown): Promise<void> }).register(guard.middleware);
  await app.listen(0, "127.0.0.1");
  console.log(name, await statuses(`${await app.getUrl()}/search`, 3));
}
process.exit();
END
npx tsx app.mts
