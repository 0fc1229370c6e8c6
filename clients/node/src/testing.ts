// Starts a server with the module for the tests of an application.

import { spawn } from "node:child_process";
import { accessSync, constants, existsSync, mkdtempSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import { homedir, tmpdir } from "node:os";
import { delimiter, dirname, join, resolve as absolute } from "node:path";

export interface TestServerOptions {
  /** The server's program. If left out: `REDIS_SERVER`, or `redis-server` or `valkey-server` on the path. */
  server?: string | undefined;
  /**
   * The module's file. If left out: `REDIS_RL_MODULE`, or that of an installation, or of a clone of the repository in
   * which this runs or that is in `~/redis-rl`.
   */
  module?: string | undefined;
  /** Settings of the server, as in `["--maxmemory", "100mb"]`. */
  args?: readonly string[] | undefined;
}

/** A server of its own, on this machine. It ends with this process, in whatever way that ends. */
export interface TestServer extends AsyncDisposable {
  readonly port: number;
  /** Such as `redis://127.0.0.1:40001`. */
  readonly url: string;
  /** Ends it, and deletes its folder. */
  stop(): Promise<void>;
}

const MODULE = "libredis_rl.so";
const INSTALLED = ["/usr/lib/redis/modules", "/usr/local/lib/redis/modules"];

/** Why no server can be started here; false if one can. For tests that are skipped then. */
export function missing({ server, module }: TestServerOptions = {}): string | false {
  if (findServer(server) === undefined) {
    return "there is no redis-server or valkey-server: install one, or set REDIS_SERVER to its path";
  }
  if (findModule(module) === undefined) {
    return `there is no ${MODULE}: install redis-rl, or set REDIS_RL_MODULE to the path of the module`;
  }
  return false;
}

/** Starts a server with the module on a free port, without persistence. */
export async function startServer(options: TestServerOptions = {}): Promise<TestServer> {
  const server = findServer(options.server);
  const module = findModule(options.module);
  if (server === undefined || module === undefined) throw new Error(String(missing(options)));
  for (let attempts = 1; ; attempts++) {
    const port = await freePort();
    const words = [server, "--port", String(port), "--loadmodule", module, ...(options.args ?? [])];
    try {
      return await start(words, port);
    } catch (error) {
      // Another process was faster to take the port.
      if (attempts === 10 || !/in use|listening on port/i.test(String(error))) throw error;
    }
  }
}

/**
 * The shell ends the server, and deletes its folder, when its input ends: that is when it is told to, or when this
 * process is gone. It is in a session of its own, so that Ctrl-C does not end it before.
 */
const SHELL =
  '"$@" 2>&1 & server=$!; exec >/dev/null; cat; kill -9 $server; wait $server 2>/dev/null; rm -rf "$PWD"';

function start(words: readonly string[], port: number): Promise<TestServer> {
  const cwd = mkdtempSync(join(tmpdir(), "redis-rl-"));
  const settings = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", cwd];
  const [server = "", ...rest] = words;
  const child = spawn("/bin/sh", ["-c", SHELL, "sh", server, ...settings, ...rest], {
    cwd,
    detached: true,
    stdio: ["pipe", "pipe", "inherit"],
  });
  const ended = new Promise<void>((resolve) =>
    child.once("exit", () => {
      resolve();
    }),
  );
  async function stop(): Promise<void> {
    child.stdin.end();
    child.ref();
    await ended;
  }
  return new Promise((resolve, reject) => {
    let log = "";
    child.once("error", reject);
    // Its program has ended before it was ready.
    child.stdout.once("end", () => {
      void stop().then(() => {
        reject(new Error(`${server} did not start:\n${log.slice(-2000)}`));
      });
    });
    const read = (text: string) => {
      log += text;
      if (!log.includes("Ready to accept connections")) return;
      child.stdout.off("data", read).resume();
      // A test that forgets to stop it ends all the same.
      child.unref();
      for (const pipe of [child.stdin, child.stdout] as unknown as Socket[]) pipe.unref();
      resolve({ port, url: `redis://127.0.0.1:${port}`, stop, [Symbol.asyncDispose]: stop });
    };
    child.stdout.setEncoding("utf8").on("data", read);
  });
}

async function freePort(): Promise<number> {
  const listener = createServer();
  await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
  const address = listener.address();
  await new Promise((resolve) => listener.close(resolve));
  return typeof address === "object" ? (address?.port ?? 0) : 0;
}

function findServer(server = process.env.REDIS_SERVER): string | undefined {
  const names = server ? [server] : ["redis-server", "valkey-server"];
  return names.flatMap(programs).find(isExecutable);
}

/** Where a program may be. */
function programs(name: string): string[] {
  if (name.includes("/")) return [absolute(name)];
  return (process.env.PATH ?? "").split(delimiter).map((folder) => join(folder, name));
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

function findModule(module = process.env.REDIS_RL_MODULE): string | undefined {
  const paths = module
    ? [absolute(module)]
    : [...INSTALLED.map((folder) => join(folder, MODULE)), ...built()];
  return paths.find((path) => existsSync(path));
}

/** Where a clone has its module. */
function built(): string[] {
  const roots = [...above(process.cwd()), ...above(__dirname), join(homedir(), "redis-rl")];
  return roots.map((root) => join(root, "target/release", MODULE));
}

function above(folder: string): string[] {
  const parent = dirname(folder);
  return parent === folder ? [folder] : [folder, ...above(parent)];
}
