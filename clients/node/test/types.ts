// What must pass the compiler: clients as applications name their types.

import { Cluster, Redis } from "ioredis";
import { createClient, createClientPool, createCluster, createSentinel } from "redis";
import { type Client, MemoryLimiter } from "redis-rl";
import { Guard, type Policy } from "redis-rl/express";

export class Service {
  readonly guard: Guard;
  constructor(client: ReturnType<typeof createClient>, policy: Policy) {
    this.guard = new Guard(client, policy);
  }
}

export const clients: (() => Client | Promise<Client>)[] = [
  () => createClient(),
  () => createClient().connect(),
  () => createClientPool(),
  () => createCluster({ rootNodes: [] }),
  () => createSentinel({ name: "main", sentinelRootNodes: [] }),
  () => new Redis(),
  () => new Cluster([]),
  () => new MemoryLimiter(),
];
