// Bun: a guard refuses the third request of two.
//
// with: bun express redis
// with: bun express ioredis
// run: bun run lib/service.mjs
// expect: 200 200 429
