// Real servers with the module, on free ports of this machine, that end with the test.

import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server as HttpServer } from "node:http";
import { type AddressInfo, connect, createServer as createListener, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, beforeEach } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { type Algorithm, type Client as AnyClient, type RateLimiter, rl, type Verdict } from "redis-rl";
import { rateLimiter } from "redis-rl";

const { REDIS_SERVER = "redis-server", MODULE } = process.env;
if (MODULE === undefined) throw new Error("MODULE is the path of libredis_rl.so");
const module_ = MODULE;

export const ALGORITHMS: readonly Algorithm[] = ["fixed", "sliding", "log", "bucket"];

export const HOUR = 3_600_000;
/** However busy the machine is, a server that answers is not away. */
export const PATIENT = { timeoutMs: 30_000 };

/** No condition takes longer, however busy the machine is. */
const PATIENCE_MS = 30_000;

/** How node-redis connects. */
export const socket = { connectTimeout: PATIENCE_MS };

export async function waitFor<T>(what: string, condition: () => Promise<T | undefined | false>): Promise<T> {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const value = await condition();
    if (value !== undefined && value !== false) return value;
    if (Date.now() > end) throw new Error(`waited in vain for ${what}`);
    await delay(5);
  }
}

/** What a test opens: how each is closed when it ends, the last first. */
export function opened(): (() => unknown)[] {
  const open: (() => unknown)[] = [];
  afterEach(async () => {
    for (const close of open.splice(0).reverse()) await close();
  });
  return open;
}

export type Figures = [number, number, number, number, number, taken?: number, at?: number];

/** What a reply means. */
export function verdictOf([limited, limit, remaining, waitMs, resetAfterMs, taken, at]: Figures): Verdict {
  const retryAfterMs = waitMs < 0 ? null : waitMs;
  const verdict = {
    allowed: limited === 0,
    limited: limited === 1,
    limit,
    remaining,
    retryAfterMs,
    resetAfterMs,
  };
  return taken === undefined || at === undefined ? verdict : { ...verdict, taken, at };
}

/** A promise that is kept when it is opened. */
export function gate(): { opened: Promise<void>; open: () => void } {
  let open = (): void => {};
  const opened = new Promise<void>((resolve) => (open = resolve));
  return { opened, open };
}

export class Server {
  readonly port: number;
  readonly #child: ChildProcess;
  readonly #folder: string;
  #pid = 0;

  private constructor(
    port: number,
    readonly options: string[],
  ) {
    this.port = port;
    this.#folder = mkdtempSync(join(tmpdir(), "redis-rl-"));
    // A sentinel needs a file that it can write to.
    writeFileSync(join(this.#folder, "conf"), "");
    const args = ["conf", "--port", String(port), "--dir", this.#folder, "--save", ""];
    // The shell ends the server when its input ends, and so when this process does, in whatever way.
    const script = '"$@" >log 2>&1 & server=$!; echo $server; cat; kill -9 $server; wait $server 2>/dev/null';
    this.#child = spawn("sh", ["-c", script, "sh", REDIS_SERVER, ...args, ...options], {
      cwd: this.#folder,
      stdio: ["pipe", "pipe", "inherit"],
    });
  }

  static start(...options: string[]): Promise<Server> {
    return Server.startWithoutModule("--loadmodule", module_, ...options);
  }

  static async startWithoutModule(...options: string[]): Promise<Server> {
    return Server.#startAt(await freePort(), options);
  }

  static async #startAt(port: number, options: string[]): Promise<Server> {
    const server = new Server(port, options);
    const [pid] = await new Promise<string[]>((resolve) =>
      server.#child.stdout?.once("data", (data) => resolve(String(data).split("\n"))),
    );
    server.#pid = Number(pid);
    await waitFor("the server", () => {
      if (server.#child.exitCode !== null) throw new Error(server.log());
      return answers(server.port);
    });
    return server;
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  log(): string {
    return readFileSync(join(this.#folder, "log"), "utf8");
  }

  /** Stops answering, until `thaw`. */
  freeze(): void {
    process.kill(this.#pid, "SIGSTOP");
  }

  thaw(): void {
    process.kill(this.#pid, "SIGCONT");
  }

  /** A server like this one, at the same port, once this one has ended. */
  again(): Promise<Server> {
    return Server.#startAt(this.port, this.options);
  }

  async stop(): Promise<void> {
    if (this.#child.exitCode !== null) return;
    const ended = new Promise((resolve) => this.#child.once("exit", resolve));
    this.#child.stdin?.end();
    await ended;
    rmSync(this.#folder, { recursive: true });
  }
}

/** Whether a server at this port is ready. */
function answers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1", () => socket.write("PING\r\n"));
    socket.once("data", (data) => {
      socket.destroy();
      resolve(String(data).startsWith("+PONG"));
    });
    socket.once("error", () => resolve(false));
  });
}

/** Whether anything listens at this port. */
export function isThere(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1", () => {
      socket.destroy();
      resolve(true);
    });
    socket.once("error", () => resolve(false));
  });
}

export async function freePort(): Promise<number> {
  // A cluster's bus takes the port 10000 above.
  for (;;) {
    const listener = createListener();
    await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
    const { port } = listener.address() as AddressInfo;
    await new Promise((resolve) => listener.close(resolve));
    if (port < 55_000) return port;
    const lower = 20_000 + Math.floor(Math.random() * 10_000);
    const probe = createListener();
    const free = await new Promise<boolean>((resolve) => {
      probe.once("error", () => resolve(false));
      probe.listen(lower, "127.0.0.1", () => resolve(true));
    });
    if (!free) continue;
    await new Promise((resolve) => probe.close(resolve));
    return lower;
  }
}

export const connectTo = (server: { url: string }) =>
  createClient({ url: server.url, socket, modules: { rl } }).connect();

export type Client = Awaited<ReturnType<typeof connectTo>>;

/** A client that connects, and connects again. */
export interface Connected {
  client: AnyClient;
  /** For plain commands. */
  limiter: RateLimiter;
  /** Answered after all that was sent before on this connection. */
  ping(): Promise<unknown>;
  stop(): void;
}

/** How a client of each library is made. */
export const libraries: Record<string, (url: string) => Connected> = {
  "node-redis": (url) => {
    const client = createClient({ url, socket, modules: { rl } }).on("error", () => {});
    client.connect().catch(() => {});
    return { client, limiter: client.rl, ping: () => client.ping(), stop: () => client.destroy() };
  },
  ioredis: (url) => {
    const client = new Redis(url).on("error", () => {});
    return {
      client,
      limiter: rateLimiter(client),
      ping: () => client.ping(),
      stop: () => client.disconnect(),
    };
  },
};

/** Gives the tests of a group one server, which each finds empty and without a past, and a client of it. */
export function onOneServer(use: (server: Server, client: Client) => void): void {
  let server: Server;
  let client: Client;
  before(async () => {
    server = await Server.start();
    client = await connectTo(server);
    use(server, client);
  });
  after(async () => {
    client?.destroy();
    await server?.stop();
  });
  beforeEach(async () => {
    await command(server, "FLUSHALL");
    await command(server, "CONFIG", "RESETSTAT");
  });
}

interface Pair {
  readonly ends: readonly [client: Socket, server: Socket];
  carriesRequests: boolean;
  carriesReplies: boolean;
}

/** What lies between a client and a server, and may carry less than it should. */
export class Forwarder {
  readonly #pairs = new Set<Pair>();
  /** One way. */
  delayMs = 0;
  /** Of connections that begin now. */
  carries = true;
  /** Replies that are held back, if any are. */
  held: (() => void)[] | undefined;

  private constructor(
    /** Where connections that begin now lead. */
    public to: number,
    readonly port: number,
    readonly stop: () => void,
  ) {}

  static async start({ port: to }: { port: number }): Promise<Forwarder> {
    const listener = createListener((client) => forwarder.#forward(client));
    await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
    const forwarder: Forwarder = new Forwarder(to, (listener.address() as AddressInfo).port, () => {
      listener.close();
      forwarder.cut();
    });
    return forwarder;
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  #forward(client: Socket): void {
    const server = connect(this.to, "127.0.0.1");
    const pair: Pair = {
      ends: [client, server],
      carriesRequests: this.carries,
      carriesReplies: this.carries,
    };
    this.#pairs.add(pair);
    const later = (send: () => void) => (this.delayMs > 0 ? setTimeout(send, this.delayMs) : send());
    client.setNoDelay().on("data", (data) => pair.carriesRequests && later(() => server.write(data)));
    server.setNoDelay().on("data", (data) => {
      if (!pair.carriesReplies) return;
      const pass = () => void client.write(data);
      if (this.held === undefined) later(pass);
      else this.held.push(pass);
    });
    for (const [from, to] of [
      [client, server],
      [server, client],
    ] as const) {
      from
        .on("error", () => {})
        .on("close", () => {
          this.#pairs.delete(pair);
          to.destroy();
        });
    }
  }

  /** Connections that there are carry nothing any more. */
  silence(): void {
    this.mute();
    for (const pair of this.#pairs) pair.carriesRequests = false;
  }

  /** Connections that there are carry no replies any more. */
  mute(): void {
    for (const pair of this.#pairs) pair.carriesReplies = false;
  }

  /** Passes what is held back, and holds nothing back any more. */
  letGo(): void {
    for (const pass of this.held ?? []) pass();
    this.held = undefined;
  }

  /** Ends the connections that there are. */
  cut(): void {
    for (const { ends } of this.#pairs) for (const end of ends) end.destroy();
  }
}

/** Three masters that share the slots. */
export async function startCluster(): Promise<Server[]> {
  const servers = await Promise.all([1, 2, 3].map(() => Server.start("--cluster-enabled", "yes")));
  const [first] = servers as [Server];
  for (const [i, server] of servers.entries()) {
    const [from, to] = [
      [0, 5460],
      [5461, 10922],
      [10923, 16383],
    ][i] as [number, number];
    await command(server, "CLUSTER", "ADDSLOTSRANGE", String(from), String(to));
    await command(server, "CLUSTER", "SET-CONFIG-EPOCH", String(i + 1));
    if (i > 0) await command(server, "CLUSTER", "MEET", "127.0.0.1", String(first.port));
  }
  for (const server of servers) {
    await waitFor("the cluster", async () => {
      const info = String(await command(server, "CLUSTER", "INFO"));
      return info.includes("cluster_state:ok") && info.includes("cluster_known_nodes:3");
    });
  }
  return servers;
}

/** A sentinel that watches a server at a port of it, and calls it `main`. */
export async function startSentinel({ port }: { port: number }, ...settings: string[]): Promise<Server> {
  const sentinel = await Server.startWithoutModule("--sentinel", ...settings);
  await command(sentinel, "SENTINEL", "MONITOR", "main", "127.0.0.1", String(port), "1");
  return sentinel;
}

/** Sends one command as it is. */
export async function command(server: Server, ...words: string[]): Promise<unknown> {
  const client = await createClient({ url: server.url, socket }).connect();
  try {
    return await client.sendCommand(words);
  } finally {
    client.destroy();
  }
}

/** How often a server has said `MOVED`. */
export async function redirections(servers: Server[]): Promise<number> {
  const counts = servers.map(async (server) => {
    const info = String(await command(server, "INFO", "errorstats"));
    return Number(/errorstat_MOVED:count=(\d+)/.exec(info)?.[1] ?? 0);
  });
  return (await Promise.all(counts)).reduce((sum, count) => sum + count);
}

/** How often a server has run a command. */
export async function calls(server: Server, name: string): Promise<number> {
  const info = String(await command(server, "INFO", "commandstats"));
  return Number(new RegExp(`^cmdstat_${name}:calls=(\\d+)`, "mi").exec(info)?.[1] ?? 0);
}

/** The server's clock. */
export async function clock(server: Server): Promise<number> {
  const [seconds, microseconds] = (await command(server, "TIME")) as [string, string];
  return Number(seconds) * 1000 + Math.floor(Number(microseconds) / 1000);
}

/** An adapter's answers to requests at once, by what they are. */
export function tally(answers: readonly (string | number)[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const answer of answers) counts[answer] = (counts[answer] ?? 0) + 1;
  return counts;
}

/** Keeps the event loop from everything else. */
export function work(ms: number): void {
  const end = performance.now() + ms;
  while (performance.now() < end);
}

export interface Web {
  url: string;
  stop(): Promise<void>;
}

/** Serves an application of Express, or any listener, on a free port. */
export async function serve(
  listener: Parameters<typeof createServer>[1],
): Promise<Web & { server: HttpServer }> {
  const server: HttpServer = createServer(listener as never);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    server,
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    stop: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
