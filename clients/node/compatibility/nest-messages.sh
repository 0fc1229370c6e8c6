# NestJS: in a handler of messages, a guard is told that it was given no request; by the socket's upgrade it counts.
#
# language: node
# with: @nestjs/common @nestjs/core @nestjs/platform-express @nestjs/platform-ws @nestjs/websockets reflect-metadata rxjs tsx ws
# expect: a guard decides about a request of HTTP
# expect: yes yes no

echo '{ "compilerOptions": { "experimentalDecorators": true } }' > tsconfig.json
cat > app.mts <<'END'
import "reflect-metadata";
import { type ExecutionContext, Module, UseGuards } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import { WsAdapter } from "@nestjs/platform-ws";
import { SubscribeMessage, WebSocketGateway } from "@nestjs/websockets";
import { MemoryLimiter } from "redis-rl";
import { Guard } from "redis-rl/express";
import { WebSocket } from "ws";

console.warn = () => {};
const guard = new Guard(new MemoryLimiter(), []);
const messages = { name: "messages", quotas: "2/m" };
let said = "";
const wrong = {
  async canActivate(context: ExecutionContext) {
    await guard.take(context.switchToHttp().getResponse(), messages).catch((error) => (said = error.message));
    return true;
  },
};

@WebSocketGateway({ path: "/socket" })
class Gateway {
  handleConnection(socket: WebSocket & { request: object }, request: object) {
    socket.request = request;
  }

  @UseGuards(wrong)
  @SubscribeMessage("ask")
  async ask(socket: WebSocket & { request: never }) {
    const { allowed } = await guard.take(socket.request, messages);
    return { event: "answer", data: allowed ? "yes" : "no" };
  }
}

@Module({ providers: [Gateway] })
class App {}
const app = await NestFactory.create(App, { logger: false });
app.useWebSocketAdapter(new WsAdapter(app));
await app.listen(0, "127.0.0.1");
const socket = new WebSocket(`${(await app.getUrl()).replace("http", "ws")}/socket`);
const answers: string[] = [];
socket.on("open", () => [1, 2, 3].forEach(() => socket.send('{ "event": "ask", "data": "hello" }')));
socket.on("message", (text) => {
  answers.push(JSON.parse(String(text)).data);
  if (answers.length < 3) return;
  console.log(said.split(",")[0]);
  console.log(...answers);
  process.exit();
});
END
npx tsx app.mts
