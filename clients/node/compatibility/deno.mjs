// Deno: a guard refuses the third request of two.
//
// with: deno express redis
// with: deno express ioredis
// run: DENO_DIR=$PWD/deno deno run --allow-all --node-modules-dir=manual lib/service.mjs
// expect: 200 200 429
